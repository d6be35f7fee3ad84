"""The text of one run: its chunks in order, each once, as in the fold. No I/O."""

from collections import deque

from schemas.stream import Chunk
from services.stream.order import ChunkOrder


class RunText(ChunkOrder):
    """The chunks of a run that are not cleared, and its newest characters.

    Attributes:
        fresh: Chunks since the last window, in order. ``take`` and ``add`` do not change this list: their caller
            appends each chunk that ``take`` accepts or ``add`` returns.
    """

    __slots__ = ("_base", "_keep", "_tail", "_uncleared", "fresh")

    def __init__(self, keep: int) -> None:
        """Create the text of a run; keep at least its newest ``keep`` characters."""
        super().__init__()
        self.fresh: list[Chunk] = []  # joined at the next window: a list costs least for each chunk
        self._keep = keep
        self._tail = ""
        self._base = 0
        self._uncleared: deque[Chunk] = deque()

    def window(self, end: int, size: int) -> tuple[int, str]:
        """Return the offset and the text of the last ``size`` characters before ``end``. Forget older text."""
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
        """Return ``seq`` of the last chunk that ends at or before ``offset``, and forget the chunks up to this one.

        Only chunks that were in ``fresh`` at an earlier call of ``window`` count. Return None if none of them that ends
        at or before ``offset`` is left.
        """
        chunks, seq = self._uncleared, None
        while chunks and chunks[0].start + len(chunks[0].text) <= offset:
            seq = chunks.popleft().seq
        return seq
