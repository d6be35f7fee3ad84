"""The jailbreak rail, a classifier that runs in separate processes.

The classifier reads at most 126 tokens, so longer texts are split into overlapping windows.
"""

import asyncio
import hashlib
import multiprocessing
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from schemas.requests import Message
from services.policy import Policy, RailSpec
from services.rails import jailbreak_model
from services.rails.patterns import CLASSIFIER_TIER, PromptSpan, apply_rulings
from services.rails.rail import PASSED, RailAnswer, RailFailed
from services.rails.turns import ActiveRequests, Turns
from services.runtime.logging import logger

CATEGORY: Final = "jailbreak"
RULE: Final = "jailbreak/classifier"

MIN_CHARS: Final = 24
"""Minimum length of a text that is scored. The classifier takes texts such as "ok" and "continue" for attacks (scores
above 0.9)."""

SHORT_CHARS: Final = 126
"""A text of at most this many code points in normal form D (NFD) has at most as many tokens, so it is one window.

The tokenizer decomposes the text: a Korean syllable may become three tokens.
"""

EDGE_CHARS: Final = 120
"""Number of characters at the beginning and at the end of a long text that are also scored by themselves.

Attacks are usually at one of these ends, and two hundred innocent characters around an attack hide it from the
classifier.
"""

CERTAIN_SCORE: Final = 0.95
"""Minimum score at which one excerpt is enough to show an attack.

Innocent prose often has an excerpt that scores 0.8. So below this score, a third of the windows must reach the
threshold.
"""

WINDOWS_PER_HIT: Final = 3

NICE: Final = 5
"""Nice level of all processes but the first."""

MAX_CACHED_SCORES: Final = 8_192
"""Maximum number of cached scores. They are used again, because each turn of a conversation starts with the text of all
previous turns."""

RESTART_S: Final = 1.0
"""Seconds between two attempts to start the processes again."""

PROCESS_ENDED: Final = "the classifier's process ended"

T = TypeVar("T")

ScoreKey = tuple[str, bytes]
"""A tenant, and the digest of a text."""

_log = logger("rails")


class Excerpt(NamedTuple):
    """A part of a text that gets its own score: a window, or the first or last ``EDGE_CHARS`` characters."""

    text: str
    is_window: bool


def choose_excerpts(text: str, spans: Sequence[tuple[int, int]], max_windows: int) -> list[Excerpt]:
    """Return the excerpts to score. Those in which an attack is most likely are first.

    At most ``max_windows`` of the excerpts are windows of the text. If the text is longer than ``2 * EDGE_CHARS``, its
    beginning and its end are excerpts, too. ``spans`` has the start and the end of each window.
    """
    # The windows are spread evenly over the text.
    last = len(spans) - 1
    read = min(max_windows, len(spans))
    places = [round(number * last / max(read - 1, 1)) for number in range(read)]
    windows = [Excerpt(text[slice(*spans[place])], is_window=True) for place in places]
    ends = (text[-EDGE_CHARS:], text[:EDGE_CHARS]) if len(text) > 2 * EDGE_CHARS else ()
    return [*windows[-1:], *(Excerpt(end, is_window=False) for end in ends), *windows[:-1]]


def is_attack(scored: Sequence[tuple[Excerpt, float]], windows: int, threshold: float) -> bool:
    """Return whether the scores so far show an attack.

    ``windows`` is the number of windows to score, including the windows that have no score yet.
    """
    # Further scores cannot change True to False.
    if any(score >= max(threshold, CERTAIN_SCORE) for _, score in scored):
        return True
    likely = sum(excerpt.is_window and score >= threshold for excerpt, score in scored)
    return likely > 0 and likely * WINDOWS_PER_HIT >= windows


@dataclass(slots=True)
class PendingScore:
    task: asyncio.Task[float] = field(init=False)
    running: Future[float] | None = None
    waiting: int = 0


class JailbreakClassifier:
    """Scores texts in separate processes.

    With two or more processes, a tenant cannot occupy all of them if another tenant used the classifier recently.
    """

    # ``first_nice`` and ``nice`` are added to the nice level of the first process and of the others. At 19, a process
    # runs only if nothing else needs the CPU. ``Turns`` gives the tenant that has used most time the first process
    # last, because it may have a higher CPU priority.

    def __init__(
        self, processes: int, *, active: ActiveRequests | None = None, first_nice: int = 0, nice: int = NICE
    ) -> None:
        self._nice = (first_nice, *(nice for _ in range(processes - 1)))
        self._turns = Turns(processes, active=active)
        self._pools = self._new_pools()
        self._missing: str | None = "the classifier is not loaded"
        self._kept: OrderedDict[bytes, float] = OrderedDict()
        self._pending: dict[ScoreKey, PendingScore] = {}  # bounded by the requests that are evaluated at once
        self._restarting: asyncio.Task[None] | None = None

    async def prepare(self) -> str | None:
        """Load the model. If it cannot be loaded, return the reason. The rail then fails for every request."""
        if self._missing is not None:
            loop = asyncio.get_running_loop()
            try:
                self._pools = self._pools or self._new_pools()
                loads = [loop.run_in_executor(pool, jailbreak_model.prepare) for pool in self._pools]
                self._missing = next((reason for reason in await asyncio.gather(*loads) if reason is not None), None)
            except (OSError, RuntimeError) as error:  # for example, there are too many processes, threads or open files
                ended = isinstance(error, BrokenProcessPool)
                self._missing = (
                    "the classifier's process ended while it loaded"
                    if ended
                    else f"the classifier's process cannot be started: {type(error).__name__}"
                )
                self._end_pools()
                if self._restarting is None or self._restarting.done():
                    self._restarting = loop.create_task(self._restart())
        return self._missing

    async def evaluate(self, policy: Policy, spec: RailSpec, tenant: str, messages: tuple[Message, ...]) -> RailAnswer:
        """Score the messages. If the scores show an attack, the policy's Rego decides what the rail answers.

        Raises:
            RailFailed: The classifier cannot be loaded, or its process ended.
            RulingError: Rego gave no usable answer.
        """
        # Every role counts, because the client supplies all messages. The messages of one role are scored as one text,
        # so that words of another role cannot dilute an attack.
        details: list[str] = []
        for role in dict.fromkeys(message.role for message in messages):
            text = "\n".join(message.content for message in messages if message.role == role)
            answer = await self._evaluate_text(policy, spec, tenant, text)
            if answer.reason is not None or answer.egress == "forbidden":
                return answer
            details += [answer.detail] if answer.detail else []
        return RailAnswer(detail=", ".join(details)) if details else PASSED

    async def _evaluate_text(self, policy: Policy, spec: RailSpec, tenant: str, text: str) -> RailAnswer:
        if len(text.strip()) < MIN_CHARS:
            return PASSED
        is_short = len(text) <= SHORT_CHARS and len(unicodedata.normalize("NFD", text)) <= SHORT_CHARS
        spans = [(0, len(text))] if is_short else await self._spans(tenant, text)
        excerpts = choose_excerpts(text, spans, spec.max_windows)
        windows = sum(excerpt.is_window for excerpt in excerpts)
        scored: list[tuple[Excerpt, float]] = []
        for begin in range(0, len(excerpts), len(self._nice)):
            some = excerpts[begin : begin + len(self._nice)]
            scores = await asyncio.gather(*(self._score(tenant, excerpt.text) for excerpt in some))
            scored += zip(some, scores, strict=True)
            if is_attack(scored, windows, spec.threshold):
                return apply_rulings(policy, tenant, [PromptSpan(RULE, CATEGORY, CLASSIFIER_TIER, 0, 0, 0)])
        unread = len(spans) - spec.max_windows
        return PASSED if unread <= 0 else RailAnswer(detail=f"read {spec.max_windows} of {len(spans)} windows")

    async def _spans(self, tenant: str, text: str) -> list[tuple[int, int]]:
        async with self._turns.turn(tenant) as place:
            return await self._result(self._submit(place, jailbreak_model.spans, text))

    def close(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
        self._end_pools()

    async def _score(self, tenant: str, window: str) -> float:
        digest = hashlib.blake2b(window.encode(errors="surrogatepass"), digest_size=16).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            self._kept.move_to_end(digest)
            return kept
        key = (tenant, digest)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = PendingScore()
            pending.task = asyncio.get_running_loop().create_task(self._compute(pending, tenant, window))
            pending.task.add_done_callback(partial(self._on_computed, key))
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiting -= 1
            if not pending.waiting and (pending.running is None or pending.task.done() or pending.running.cancel()):
                pending.task.cancel()  # no call waits for it, and it has not started
                self._pending.pop(key, None)

    async def _compute(self, pending: PendingScore, tenant: str, window: str) -> float:
        async with self._turns.turn(tenant) as place:
            pending.running = self._submit(place, jailbreak_model.score, window)
            return await self._result(pending.running)

    def _on_computed(self, key: ScoreKey, computed: asyncio.Task[float]) -> None:
        if computed.cancelled():
            return  # ``_score`` has removed it
        self._pending.pop(key, None)
        if computed.exception() is None:  # even if the score is too late for its request
            self._kept[key[1]] = computed.result()
            if len(self._kept) > MAX_CACHED_SCORES:
                self._kept.popitem(last=False)

    def _submit(self, place: int, function: Callable[[str], T], text: str) -> Future[T]:
        if self._missing is not None:
            raise RailFailed(self._missing)
        try:
            return self._pools[place].submit(function, text)
        except BrokenProcessPool:
            self._restart_pool()
            raise RailFailed(PROCESS_ENDED) from None

    async def _result(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except BrokenProcessPool:
            self._restart_pool()
            raise RailFailed(PROCESS_ENDED) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # `_end_pools` cancelled the score, and nobody this task
                raise RailFailed(PROCESS_ENDED) from None
            raise

    def _restart_pool(self) -> None:
        if self._missing is None:  # else the processes are starting already
            self._missing = "the classifier's process ended and is being started again"
            _log.error("%s", self._missing)
            self._end_pools()
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        # Too little memory, for example, may end the processes again and again, or keep them from starting.
        while await self.prepare() is not None:  # noqa: ASYNC110 - this polls nothing
            await asyncio.sleep(RESTART_S)

    def _end_pools(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools = []

    def _new_pools(self) -> list[ProcessPoolExecutor]:
        context = multiprocessing.get_context("spawn")
        return [  # one pool for each place of ``Turns``
            ProcessPoolExecutor(1, mp_context=context, initializer=jailbreak_model.init_worker, initargs=(nice,))
            for nice in self._nice
        ]
