"""Which chunks count and in what order, and which run of an attempt: the same for every reader. Pure."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Chunk, Started

MAX_WAITING: Final = 1_024
"""Most chunks kept while an earlier one is missing; more are dropped, and the run stalls."""


class ChunkOrder:
    """Puts one run's chunks in ``seq`` order, each once. A gap waits; a chunk with a wrong ``start`` is dropped.

    Attributes:
        next_seq: The next chunk.
        length: Code points in the chunks so far: where the next one starts.
    """

    __slots__ = ("_waiting", "length", "next_seq")

    def __init__(self) -> None:
        self.next_seq = 0
        self.length = 0
        self._waiting: dict[int, Chunk] = {}

    def take(self, chunk: Chunk) -> bool:
        """Take the next chunk while none waits, the usual case. Return false for any other: then call ``add``."""
        seq, start = chunk.seq, chunk.start
        if seq != self.next_seq or start != self.length or self._waiting:
            return False
        self.next_seq = seq + 1
        self.length = start + len(chunk.text)
        return True

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """Take any chunk. Return those that are in order now."""
        if chunk.seq != self.next_seq:
            if chunk.seq > self.next_seq and len(self._waiting) < MAX_WAITING:
                self._waiting.setdefault(chunk.seq, chunk)
            return ()
        ready: list[Chunk] = []
        following: Chunk | None = chunk
        while following is not None and following.start == self.length:
            ready.append(following)
            self.next_seq += 1
            self.length += len(following.text)
            following = self._waiting.pop(self.next_seq, None)
        return ready


class FirstRuns:
    """The first run of each attempt: within an attempt the first ``Started`` in the log wins.

    Attributes:
        by_attempt: The runs that count.
    """

    __slots__ = ("by_attempt",)

    def __init__(self) -> None:
        self.by_attempt: dict[int, Started] = {}  # at most 100 attempts

    def register(self, started: Started) -> bool:
        """Note a run; return whether it is its attempt's first."""
        if started.attempt in self.by_attempt:
            return False
        self.by_attempt[started.attempt] = started
        return True

    def is_first(self, attempt: int, run: str) -> bool:
        first = self.by_attempt.get(attempt)
        return first is not None and first.run == run
