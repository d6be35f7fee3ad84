"""Track which offset of each partition may be committed. No I/O.

Records may be finished in any order, but a committed offset means that all records before it are done. So the
offset to commit for a partition is the offset of its first record that is not done. If all are done, it is the offset
after the last record that was read.
"""

from collections import deque
from collections.abc import Iterable

from services.bus.records import Partition


class PartitionProgress:
    __slots__ = ("_next", "_open", "_order")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._open: set[int] = set()
        self._next = 0

    def read(self, next_offset: int, kept: Iterable[int] = ()) -> None:
        """Mark all records before ``next_offset`` as read.

        ``kept`` has the offsets of the newly read records that are not done yet.
        If reading has gone back to an earlier offset, the offsets of all previous calls are forgotten.
        """
        kept = tuple(kept)
        if (kept[0] if kept else next_offset) < self._next:
            self._order.clear()
            self._open.clear()
        self._order.extend(kept)
        self._open.update(kept)
        self._next = next_offset

    def done(self, offset: int) -> None:
        self._open.discard(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()

    @property
    def position(self) -> int:
        return self._order[0] if self._order else self._next


class CommitTracker:
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
        positions = {partition: progress.position for partition, progress in self._progress.items()}
        return {p: position for p, position in positions.items() if self._committed.get(p) != position}

    def committed(self, positions: dict[Partition, int]) -> None:
        self._committed.update({p: at for p, at in positions.items() if p in self._progress})

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._progress.pop(partition, None)
            self._committed.pop(partition, None)
