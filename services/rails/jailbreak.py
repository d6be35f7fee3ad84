"""The jailbreak rail: a classifier whose weights come in packages, in processes of its own.

The classifier reads 126 tokens of a text and no more, so longer ones are given to it in overlapping windows.
"""

import asyncio
import hashlib
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from schemas.requests import Message
from services.policy import Policy, RailSpec
from services.rails import model
from services.rails.patterns import CLASSIFIER_TIER, Spot, weigh
from services.rails.rail import PASSED, Answer, RailBroke
from services.runtime.logging import logger

CATEGORY: Final = "jailbreak"
RULE: Final = "jailbreak/classifier"

MIN_CHARS: Final = 24
"""Shorter texts are not judged: the classifier takes "ok" and "continue" for attacks (scores above 0.9)."""

SHORT_CHARS: Final = 126
"""A text of so many characters has no more tokens than that: it is one window."""

EDGE_CHARS: Final = 120
"""A long text's beginning and end are judged by themselves too: two hundred innocent characters around it hide an
attack from the classifier, and these are where one is usually put."""

CERTAIN: Final = 0.95
"""From this score on one piece is enough. Below it a piece cut out of a longer text says little: innocent prose often
scores 0.8 somewhere, so that much is asked of a third of the windows."""

SHARE: Final = 3

KEPT_SCORES: Final = 8_192
"""Windows whose score is remembered: the next turn of a conversation begins with all those before."""

ENDED: Final = "the classifier's process ended"

T = TypeVar("T")

_log = logger("rails")


class Piece(NamedTuple):
    """Something that is scored.

    Attributes:
        text: What.
        is_window: One of the text's windows, and not one of its two ends.
    """

    text: str
    is_window: bool


def reading(text: str, spans: Sequence[tuple[int, int]], most: int) -> list[Piece]:
    """The pieces of a text that are scored; those first where an attack is likely.

    Args:
        text: The text.
        spans: Its windows.
        most: So many windows are read; of more, the first, the last, and others spread evenly between them.
    """
    last = len(spans) - 1
    read = min(most, len(spans))
    places = [round(number * last / max(read - 1, 1)) for number in range(read)]
    windows = [Piece(text[slice(*spans[place])], is_window=True) for place in places]
    ends = (text[-EDGE_CHARS:], text[:EDGE_CHARS]) if len(text) > 2 * EDGE_CHARS else ()
    return [*windows[-1:], *(Piece(end, is_window=False) for end in ends), *windows[:-1]]


def is_attack(scored: Sequence[tuple[Piece, float]], windows: int, threshold: float) -> bool:
    """Whether the scores so far say so; more of them never take it back.

    Args:
        scored: Pieces with their scores.
        windows: How many windows are read in all.
        threshold: Policy's.
    """
    if any(score >= max(threshold, CERTAIN) for _, score in scored):
        return True
    likely = sum(piece.is_window and score >= threshold for piece, score in scored)
    return likely > 0 and likely * SHARE >= windows


@dataclass(slots=True)
class PendingScore:
    """A score that is on its way, and how many wait for it."""

    future: Future[float]
    waiting: int = 0


class Classifier:
    """Scores texts in a bounded number of processes.

    Args:
        processes: Texts at once.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = self._new_pool()
        self._missing: str | None = "the classifier is not loaded"
        self._kept: OrderedDict[bytes, float] = OrderedDict()
        self._pending: dict[bytes, PendingScore] = {}  # bounded by the requests that are judged at once
        self._mending: asyncio.Task[str | None] | None = None

    async def prepare(self) -> str | None:
        """Load it. Returns why it cannot be, if so: the rail then breaks for every request."""
        if self._missing is not None:
            loop = asyncio.get_running_loop()
            loads = (loop.run_in_executor(self._pool, model.prepare) for _ in range(self._processes))
            try:
                self._missing = next((reason for reason in await asyncio.gather(*loads) if reason is not None), None)
            except BrokenProcessPool:
                self._missing = "the classifier's process ended while it loaded"
                self._pool = self._new_pool()
        return self._missing

    async def look(self, policy: Policy, spec: RailSpec, tenant: str, messages: tuple[Message, ...]) -> Answer:
        """What the classifier says of everything the user said, and what Rego says that means.

        Raises:
            RailBroke: It cannot be loaded, or its process died.
            RulingError: Rego gave no usable answer.
        """
        text = "\n".join(message.content for message in messages if message.role == "user")
        if len(text.strip()) < MIN_CHARS:
            return PASSED
        spans = [(0, len(text))] if len(text) <= SHORT_CHARS else await self._spans(text)
        pieces = reading(text, spans, spec.max_windows)
        windows = sum(piece.is_window for piece in pieces)
        scored: list[tuple[Piece, float]] = []
        for begin in range(0, len(pieces), self._processes):
            some = pieces[begin : begin + self._processes]
            scores = await asyncio.gather(*(self._score(piece.text) for piece in some))
            scored += zip(some, scores, strict=True)
            if is_attack(scored, windows, spec.threshold):
                return weigh(policy, tenant, [Spot(RULE, CATEGORY, CLASSIFIER_TIER, 0, 0, 0)])
        unread = len(spans) - spec.max_windows
        return PASSED if unread <= 0 else Answer(detail=f"read {spec.max_windows} of {len(spans)} windows")

    async def _spans(self, text: str) -> list[tuple[int, int]]:
        return await self._result(asyncio.wrap_future(self._submit(model.spans, text)))

    def close(self) -> None:
        """End its processes."""
        if self._mending is not None:
            self._mending.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _score(self, window: str) -> float:
        """A window's score: remembered, or the same as somebody waits for already, or asked for."""
        key = hashlib.blake2b(window.encode(errors="surrogatepass"), digest_size=16).digest()
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = PendingScore(self._submit(model.score, window))
            pending.future.add_done_callback(partial(self._on_score, asyncio.get_running_loop(), key))
        pending.waiting += 1
        try:
            return await self._result(asyncio.shield(asyncio.wrap_future(pending.future)))
        finally:
            pending.waiting -= 1
            if not pending.waiting and pending.future.cancel():  # nobody wants it any more, and it has not begun
                self._pending.pop(key, None)

    def _submit(self, function: Callable[[str], T], text: str) -> Future[T]:
        if self._missing is not None:
            raise RailBroke(self._missing)
        try:
            return self._pool.submit(function, text)
        except BrokenProcessPool:
            self._mend()
            raise RailBroke(ENDED) from None

    async def _result(self, future: asyncio.Future[T]) -> T:
        try:
            return await future
        except BrokenProcessPool:
            self._mend()
            raise RailBroke(ENDED) from None

    def _on_score(self, loop: asyncio.AbstractEventLoop, key: bytes, score: Future[float]) -> None:
        """Mostly in a thread of the pool: a score that comes too late is good for whoever asks again."""
        if not score.cancelled() and not loop.is_closed():
            loop.call_soon_threadsafe(self._keep, key, score)

    def _keep(self, key: bytes, score: Future[float]) -> None:
        self._pending.pop(key, None)
        if score.exception() is None:
            self._kept[key] = score.result()
            if len(self._kept) > KEPT_SCORES:
                self._kept.popitem(last=False)

    def _mend(self) -> None:
        """Start it again, once; until it is loaded the rail breaks."""
        if self._missing is None:
            self._missing = "the classifier's process ended and is being started again"
            _log.error("%s", self._missing)
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._new_pool()
            self._mending = asyncio.get_running_loop().create_task(self.prepare())

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._processes, mp_context=context, initializer=model.init_worker)
