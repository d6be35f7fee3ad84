"""The text of one run, in order and without duplicates. No I/O."""

from collections import deque

from schemas.stream import Chunk
from services.stream.order import ChunkOrder


class RunText(ChunkOrder):
    """The part of a run's text that is still needed: the chunks that are not cleared, and the newest characters.

    Args:
        keep: The largest ``size`` with which ``window`` will be called.

    Attributes:
        fresh: Chunks since the last call of ``window``, in order. The caller must append each new chunk.
    """

    __slots__ = ("_base", "_keep", "_tail", "_uncleared", "fresh")

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.fresh: list[Chunk] = []  # joined at the next window: a list costs least for each chunk
        self._keep = keep
        self._tail = ""
        self._base = 0
        self._uncleared: deque[Chunk] = deque()

    def window(self, end: int, size: int) -> tuple[int, str]:
        """Return the start offset and the text of the window of at most ``size`` characters that ends at ``end``."""
        self._uncleared.extend(self.fresh)
        self._tail += "".join([chunk.text for chunk in self.fresh])
        self.fresh.clear()
        old = end - self._keep - self._base
        if old > 3 * self._keep:
            self._base += old
            self._tail = self._tail[old:]
        start = max(0, end - size)
        return start, self._tail[start - self._base : end - self._base]

    def whole_before(self, offset: int) -> int | None:
        """Remove the uncleared chunks that end at or before ``offset``, and return the ``seq`` of the last one.

        Return None if there is no such chunk.
        """
        chunks, seq = self._uncleared, None
        while chunks and chunks[0].start + len(chunks[0].text) <= offset:
            seq = chunks.popleft().seq
        return seq
