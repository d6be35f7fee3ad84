"""Track which offset of each partition may be committed. No I/O.

Work on records ends in any order, but a committed offset means that all records before it are done. So a partition's
position is the offset of its first record that is not done. If all are done, it is the offset after the last record
that was read.
"""

from collections import deque
from collections.abc import Iterable

from services.bus.records import Partition


class PartitionProgress:
    """The records of one partition that were read and are not done."""

    __slots__ = ("_next", "_open", "_order")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._open: set[int] = set()
        self._next = 0

    def read(self, next_offset: int, kept: Iterable[int] = ()) -> None:
        """Record that all records before ``next_offset`` were read, and that those in ``kept`` are not done.

        ``kept`` has offsets in rising order. If its first offset (``next_offset`` if it is empty) is lower than the
        ``next_offset`` of the last call, reading was restarted. Then the records kept in earlier calls are forgotten.
        """
        kept = tuple(kept)
        if (kept[0] if kept else next_offset) < self._next:
            self._order.clear()
            self._open.clear()
        self._order.extend(kept)
        self._open.update(kept)
        self._next = next_offset

    def done(self, offset: int) -> None:
        """Mark a kept record as done. Ignore an offset that is not kept or is done already."""
        self._open.discard(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()

    @property
    def position(self) -> int:
        return self._order[0] if self._order else self._next


class CommitTracker:
    """The positions of all partitions of one reader, and which of them are committed."""

    __slots__ = ("_committed", "_progress")

    def __init__(self) -> None:
        self._progress: dict[Partition, PartitionProgress] = {}
        self._committed: dict[Partition, int] = {}

    def read(self, partition: Partition, next_offset: int, kept: Iterable[int] = ()) -> None:
        self._progress.setdefault(partition, PartitionProgress()).read(next_offset, kept)

    def done(self, partition: Partition, offset: int) -> None:
        if (progress := self._progress.get(partition)) is not None:
            progress.done(offset)

    def due(self) -> dict[Partition, int]:
        """Return the positions that are not committed yet."""
        positions = {partition: progress.position for partition, progress in self._progress.items()}
        return {p: position for p, position in positions.items() if self._committed.get(p) != position}

    def committed(self, positions: dict[Partition, int]) -> None:
        self._committed.update({p: at for p, at in positions.items() if p in self._progress})

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._progress.pop(partition, None)
            self._committed.pop(partition, None)
