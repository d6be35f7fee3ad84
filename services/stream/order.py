"""Which chunks count and in what order, and which run of an attempt: for every reader of the log alike. Pure."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Chunk, Started

MAX_WAITING: Final = 1_024
"""Chunks kept while an earlier one is missing. More are dropped: a run that far ahead of itself is stalled."""


class ChunkOrder:
    """Put one run's chunks in ``seq`` order, each once. A gap waits; a wrong ``start`` is not believed.

    Attributes:
        next_seq: The chunk that comes next.
        length: Code points in the chunks so far: where the next one starts.
    """

    __slots__ = ("_waiting", "length", "next_seq")

    def __init__(self) -> None:
        self.next_seq = 0
        self.length = 0
        self._waiting: dict[int, Chunk] = {}

    def take(self, chunk: Chunk) -> bool:
        """Take a chunk that is next while none waits: nearly every one. Return whether it was; else call ``hear``."""
        seq, start = chunk.seq, chunk.start
        if seq != self.next_seq or start != self.length or self._waiting:
            return False
        self.next_seq = seq + 1
        self.length = start + len(chunk.text)
        return True

    def hear(self, chunk: Chunk) -> Sequence[Chunk]:
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
    """Within an attempt the first ``Started`` in the log wins; no other run of it counts.

    Attributes:
        by_attempt: The runs that count.
    """

    __slots__ = ("by_attempt",)

    def __init__(self) -> None:
        self.by_attempt: dict[int, Started] = {}  # at most 100 attempts

    def register(self, started: Started) -> bool:
        """Note a run. Return whether it is its attempt's first."""
        if started.attempt in self.by_attempt:
            return False
        self.by_attempt[started.attempt] = started
        return True

    def is_heard(self, attempt: int, run: str) -> bool:
        """Return whether this is the attempt's run."""
        first = self.by_attempt.get(attempt)
        return first is not None and first.run == run
