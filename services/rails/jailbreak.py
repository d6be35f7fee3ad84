"""The jailbreak rail: a classifier whose weights come in a package, in processes of its own.

The classifier reads 256 tokens of a text and no more, so longer ones are given to it in overlapping windows.
"""

import asyncio
import hashlib
import multiprocessing
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Final

from schemas.requests import Message
from services.policy import Policy
from services.rails import scorer
from services.rails.answers import PASSED, Answer, RailBroke
from services.rails.patterns import CLASSIFIER_TIER, Spot, weigh
from services.runtime.logging import logger

CATEGORY: Final = "jailbreak"
RULE: Final = "jailbreak/classifier"

MIN_CHARS: Final = 24
"""Shorter texts are not judged: the classifier takes "ok" and "continue" for attacks (scores above 0.9)."""

WINDOW_CHARS: Final = 800
STRIDE_CHARS: Final = 600

EDGE_CHARS: Final = 120
"""A long text's beginning and end are judged by themselves too: two hundred innocent characters around it hide an
attack from the classifier, and these are where one is usually put."""

KEPT_SCORES: Final = 8_192
"""Windows whose score is remembered: the next turn of a conversation begins with all those before."""

_log = logger("rails")


def windows(text: str) -> Iterator[str]:
    """Overlapping pieces that the classifier reads whole, then the text's two ends."""
    yield text[:WINDOW_CHARS]
    for start in range(STRIDE_CHARS, len(text) - WINDOW_CHARS + STRIDE_CHARS, STRIDE_CHARS):
        yield text[start : start + WINDOW_CHARS]
    if len(text) > 2 * EDGE_CHARS:
        yield text[-EDGE_CHARS:]
        yield text[:EDGE_CHARS]


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
        self._mending: asyncio.Task[str | None] | None = None

    async def prepare(self) -> str | None:
        """Load it. Returns why it cannot be, if so: the rail then breaks for every request."""
        if self._missing is not None:
            loop = asyncio.get_running_loop()
            loads = (loop.run_in_executor(self._pool, scorer.prepare) for _ in range(self._processes))
            try:
                self._missing = next((reason for reason in await asyncio.gather(*loads) if reason is not None), None)
            except BrokenProcessPool:
                self._missing = "the classifier's process ended while it loaded"
                self._pool = self._new_pool()
        return self._missing

    async def look(self, policy: Policy, threshold: float, tenant: str, messages: tuple[Message, ...]) -> Answer:
        """What the classifier says of everything the user said, and what Rego says that means.

        Raises:
            RailBroke: It cannot be loaded, or its process died.
            RulingError: Rego gave no usable answer.
        """
        text = "\n".join(message.content for message in messages if message.role == "user")
        if len(text.strip()) < MIN_CHARS:
            return PASSED
        for window in windows(text):
            if await self._score(window) >= threshold:
                return weigh(policy, tenant, [Spot(RULE, CATEGORY, CLASSIFIER_TIER, 0, 0, 0)])
        return PASSED

    def close(self) -> None:
        """End its processes."""
        if self._mending is not None:
            self._mending.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _score(self, window: str) -> float:
        key = hashlib.blake2b(window.encode(errors="surrogatepass"), digest_size=16).digest()
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        if self._missing is not None:
            raise RailBroke(self._missing)
        try:
            score = self._pool.submit(scorer.score, window)
            score.add_done_callback(partial(self._on_score, asyncio.get_running_loop(), key))
            return await asyncio.wrap_future(score)  # given up before it began, it never begins
        except BrokenProcessPool:
            self._mend()
            raise RailBroke("the classifier's process ended") from None

    def _on_score(self, loop: asyncio.AbstractEventLoop, key: bytes, score: Future[float]) -> None:
        """In a thread of the pool: a score that comes too late is good for whoever asks again."""
        if not score.cancelled() and score.exception() is None and not loop.is_closed():
            loop.call_soon_threadsafe(self._keep, key, score.result())

    def _keep(self, key: bytes, score: float) -> None:
        self._kept[key] = score
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
        return ProcessPoolExecutor(self._processes, mp_context=context, initializer=scorer.begin)
