"""Where a reader stands that goes back in time when it is given a partition: pure bookkeeping, no I/O.

A partition that was held just before goes on where it was, because what its handler made of the log is still good.
A new one begins in the past; it has caught up when it was read to where the log ended at the assignment.
"""

from collections.abc import Mapping

from services.bus.offsets import Partition


class Replay:
    """The partitions of one reader."""

    __slots__ = ("_ends", "_next")

    def __init__(self) -> None:
        self._next: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}

    def hold(self, partitions: frozenset[Partition]) -> dict[Partition, int]:
        """These are held from now on; the next offset of those that were held before."""
        self._next = {partition: at for partition, at in self._next.items() if partition in partitions}
        return dict(self._next)

    def place(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> frozenset[Partition]:
        """Reading begins at ``starts``, the log ends at ``ends``; which partitions have nothing to catch up with."""
        self._next = dict(starts)
        self._ends = dict(ends)
        return self._arrived(starts)

    def read(self, progress: Mapping[Partition, int]) -> frozenset[Partition]:
        """These were read up to the given next offset; which partitions have caught up by that."""
        for partition, next_offset in progress.items():
            if partition in self._next:
                self._next[partition] = next_offset
        return self._arrived(progress) if self._ends else frozenset()

    def _arrived(self, at: Mapping[Partition, int]) -> frozenset[Partition]:
        arrived = frozenset(p for p, position in at.items() if p in self._ends and position >= self._ends[p])
        for partition in arrived:
            del self._ends[partition]
        return arrived
