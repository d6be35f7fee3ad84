"""Which offset may be committed: pure bookkeeping, no I/O.

Work on records ends in any order; a commit says "everything before this is done". So the position of a partition is its
first record that is not done, or one past the last that was read when all are.
"""

from collections import deque
from collections.abc import Iterable

Partition = tuple[str, int]


class Track:
    """One partition's records between reading and being done."""

    __slots__ = ("_next", "_open", "_order")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._open: set[int] = set()
        self._next = 0

    def read(self, next_offset: int, kept: Iterable[int] = ()) -> None:
        """Records before ``next_offset`` were read; those ``kept``, in rising order, are not done yet.

        A kept offset below what was read before means that reading began again there: what was open is forgotten.
        """
        kept = tuple(kept)
        if (kept[0] if kept else next_offset) < self._next:
            self._order.clear()
            self._open.clear()
        self._order.extend(kept)
        self._open.update(kept)
        self._next = next_offset

    def done(self, offset: int) -> None:
        """The work on a kept record is over; an offset that is not open is ignored."""
        self._open.discard(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()

    @property
    def position(self) -> int:
        """What may be committed."""
        return self._order[0] if self._order else self._next

    @property
    def open(self) -> int:
        """How many kept records are not done."""
        return len(self._open)


class OffsetBook:
    """The partitions of one reader."""

    __slots__ = ("_committed", "_tracks")

    def __init__(self) -> None:
        self._tracks: dict[Partition, Track] = {}
        self._committed: dict[Partition, int] = {}

    def read(self, partition: Partition, next_offset: int, kept: Iterable[int] = ()) -> None:
        """See ``Track.read``."""
        self._tracks.setdefault(partition, Track()).read(next_offset, kept)

    def done(self, partition: Partition, offset: int) -> None:
        """See ``Track.done``; a partition that is no longer ours is ignored."""
        if (track := self._tracks.get(partition)) is not None:
            track.done(offset)

    def due(self) -> dict[Partition, int]:
        """Positions that are not committed yet."""
        positions = {partition: track.position for partition, track in self._tracks.items()}
        return {p: position for p, position in positions.items() if self._committed.get(p) != position}

    def committed(self, positions: dict[Partition, int]) -> None:
        """The broker has taken these."""
        self._committed.update({p: at for p, at in positions.items() if p in self._tracks})

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These were taken away."""
        for partition in partitions:
            self._tracks.pop(partition, None)
            self._committed.pop(partition, None)
