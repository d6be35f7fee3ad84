"""The text of one run as it comes off the log: in order, each chunk once, as the fold hears it. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from schemas.stream import Chunk

MAX_WAITING: Final = 1_024
"""Chunks kept while an earlier one is missing; the fold keeps as many and ignores the rest, so nobody is shown them."""


class Transcript:
    """Chunks in order, their ends until they are cleared, and the newest characters.

    Attributes:
        length: Code points heard so far.
        next_seq: The chunk that comes next.
    """

    __slots__ = ("_base", "_ends", "_keep", "_tail", "_waiting", "length", "next_seq")

    def __init__(self, keep: int) -> None:
        """Keep at least the newest ``keep`` characters."""
        self.length = 0
        self.next_seq = 0
        self._keep = keep
        self._tail = ""
        self._base = 0
        self._ends: deque[tuple[int, int]] = deque()  # (end, seq), not cleared yet
        self._waiting: dict[int, Chunk] = {}

    def hear(self, chunk: Chunk) -> Iterator[str]:
        """The texts that are now in order. One whose offset contradicts the text is not believed."""
        if chunk.seq > self.next_seq:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.setdefault(chunk.seq, chunk)
            return
        following: Chunk | None = chunk if chunk.seq == self.next_seq else None
        while following is not None and following.start == self.length:
            self.length += len(following.text)
            self._ends.append((self.length, following.seq))
            self.next_seq += 1
            yield following.text
            following = self._waiting.pop(self.next_seq, None)

    def take(self, chunk: Chunk, size: int) -> bool:
        """Take a chunk that is in order, when nothing waits for it, and remember its text. Returns whether it was."""
        seq, length = chunk.seq, self.length
        if seq != self.next_seq or chunk.start != length or self._waiting:
            return False
        self.length = length = length + size
        self.next_seq = seq + 1
        self._ends.append((length, seq))
        self._tail += chunk.text
        return True

    def remember(self, piece: str) -> None:
        """Add to the newest characters."""
        self._tail += piece

    def window(self, end: int, size: int) -> tuple[int, str]:
        """The last ``size`` characters before ``end``, and where they begin. Text far before them is let go."""
        if len(self._tail) > 4 * self._keep:
            self._base += len(self._tail) - self._keep
            self._tail = self._tail[-self._keep :]
        start = max(0, end - size)
        return start, self._tail[start - self._base : end - self._base]

    def whole_before(self, offset: int) -> int | None:
        """The last chunk that ends at or before an offset; None when there is no new one. It is forgotten then."""
        seq = None
        while self._ends and self._ends[0][0] <= offset:
            seq = self._ends.popleft()[1]
        return seq
