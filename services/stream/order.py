"""Put the chunks of a run in order, and find the first run of each attempt."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Chunk, Started

MAX_WAITING: Final = 1_024
"""Maximum number of chunks kept while an earlier chunk is missing. Further chunks are dropped, and the run stalls."""


class ChunkOrder:
    """Puts the chunks of one run in the order of ``seq``, and drops duplicates.

    A chunk that arrives too early waits until all chunks before it have arrived.

    Attributes:
        next_seq: ``seq`` of the first chunk that is missing.
        length: Number of code points in the chunks before the missing chunk.
    """

    __slots__ = ("_waiting", "length", "next_seq")

    def __init__(self) -> None:
        self.next_seq = 0
        self.length = 0
        self._waiting: dict[int, Chunk] = {}

    def take(self, chunk: Chunk) -> bool:
        """Accept ``chunk`` if it is next in order, and no later chunk is waiting. Return whether it was accepted.

        If the chunk was not accepted, pass it to ``add``.
        """
        seq, start = chunk.seq, chunk.start
        if seq != self.next_seq or start != self.length or self._waiting:
            return False
        self.next_seq = seq + 1
        self.length = start + len(chunk.text)
        return True

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """Add a chunk that may be out of order. Return the chunks that need not wait any more, in order."""
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
    """The first run of each attempt, that is, the run whose ``Started`` comes first. Later runs are ignored."""

    __slots__ = ("by_attempt",)

    def __init__(self) -> None:
        self.by_attempt: dict[int, Started] = {}  # at most 100 attempts

    def register(self, started: Started) -> bool:
        """Record a run. Return whether it is the first run of its attempt."""
        if started.attempt in self.by_attempt:
            return False
        self.by_attempt[started.attempt] = started
        return True

    def is_first(self, attempt: int, run: str) -> bool:
        first = self.by_attempt.get(attempt)
        return first is not None and first.run == run
