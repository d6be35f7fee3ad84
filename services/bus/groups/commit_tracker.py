"""Which offset may be committed: pure bookkeeping, no I/O.

Work on records ends in any order; a commit means "everything before this is done". So a partition's position is its
first record that is not done, or one past the last that was read when all are.
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
        """Note that records before ``next_offset`` were read; those in ``kept``, in rising order, are not done yet.

        A kept offset below an earlier position means that reading restarted there: open records are forgotten.
        """
        kept = tuple(kept)
        if (kept[0] if kept else next_offset) < self._next:
            self._order.clear()
            self._open.clear()
        self._order.extend(kept)
        self._open.update(kept)
        self._next = next_offset

    def done(self, offset: int) -> None:
        """Mark a kept record as done; ignore an offset that is not open."""
        self._open.discard(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()

    @property
    def position(self) -> int:
        return self._order[0] if self._order else self._next

    @property
    def open(self) -> int:
        return len(self._open)


class CommitTracker:
    """The partitions of one reader."""

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
