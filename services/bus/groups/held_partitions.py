from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from services.bus.records import Partition, TopicPartitions

Waiter = TypeVar("Waiter", bound=Hashable)


class Assignment(NamedTuple):
    """A change of the partitions that a member reads.

    A partition that must be read again from another offset is in ``gained`` and in ``lost``.

    Attributes:
        held: The partitions that the member reads after the change.
        gained: The partitions that the member begins to read.
        lost: The partitions that the member stops reading.
    """

    held: TopicPartitions
    gained: TopicPartitions
    lost: TopicPartitions


OnAssigned = Callable[[Assignment], None]


class HeldPartitions(Generic[Waiter]):
    """The partitions of one reader, each with the next offset to read.

    ``set_goal`` adds a waiter, such as a future, and its goal: the offsets up to which some partitions must be read.
    ``start_at``, ``read`` and ``lower_goals`` remove and return the waiters whose goal is reached. ``assign`` removes
    and returns the waiters that wait for a lost partition.
    """

    __slots__ = ("_ends", "_goals", "_known_us", "held", "positions")

    def __init__(self) -> None:
        self.held: TopicPartitions = frozenset()
        """All partitions of the last assignment."""
        self.positions: dict[Partition, int] = {}
        """The next offset to read, for each partition whose start offset is known."""
        self._goals: dict[Waiter, tuple[dict[Partition, int], int]] = {}  # with the time when its ends were asked for
        self._ends: dict[Partition, tuple[int, int]] = {}  # the last known end, and when it was asked for
        self._known_us: dict[Partition, int] = {}

    @property
    def without_position(self) -> TopicPartitions:
        return frozenset(each for each in self.held if each not in self.positions)

    def assign(
        self, partitions: TopicPartitions, anew: TopicPartitions = frozenset()
    ) -> tuple[Assignment, list[Waiter]]:
        """Replace the held partitions. Remove the waiters that wait for a lost partition.

        Args:
            partitions: All partitions to hold from now on.
            anew: Those of ``partitions`` whose next offset must be set again with ``start_at``, even if they are held.

        Returns:
            The change, and the removed waiters. In the change, a partition of ``anew`` counts as gained, and also as
            lost if it was held before.
        """
        kept = (self.held & partitions) - anew
        lost = self.held - kept
        self.held = partitions
        for partition in lost:
            self.positions.pop(partition, None)
            self._ends.pop(partition, None)
            self._known_us.pop(partition, None)
        missed = [waiter for waiter, (goal, _) in self._goals.items() if not lost.isdisjoint(goal)]
        for waiter in missed:
            del self._goals[waiter]
        return Assignment(partitions, partitions - kept, lost), missed

    def start_at(self, starts: Mapping[Partition, int]) -> list[Waiter]:
        for partition, start in starts.items():
            if partition in self.held:
                self.positions.setdefault(partition, start)
        return self._take_reached()

    def read(self, progress: Mapping[Partition, int]) -> list[Waiter]:
        self.positions.update(progress)
        return self._take_reached() if self._goals else []

    def note_ends(self, ends: Mapping[Partition, int], asked_us: int) -> None:
        for partition, end in ends.items():
            if asked_us >= self._ends.get(partition, (0, 0))[1]:  # a later request may be answered earlier
                self._known_us[partition] = self.read_up_to_us(partition)
                self._ends[partition] = (end, asked_us)

    def read_up_to_us(self, partition: Partition) -> int:
        """Return the time up to which the partition has been read; 0 if unknown. The time is by the reader's clock.

        All records that were appended to the partition before this time have been read.
        """
        end, asked_us = self._ends.get(partition, (0, 0))
        return asked_us if self.positions.get(partition, -1) >= end else self._known_us.get(partition, 0)

    def set_goal(self, waiter: Waiter, ends: Mapping[Partition, int], asked_us: int) -> bool:
        """Add a waiter whose goal is to reach the offsets ``ends``. Also pass ``ends`` to ``note_ends``.

        If all these offsets are reached already, do not add the waiter, and return True.

        Args:
            waiter: An object such as a future. When its goal is reached, ``start_at``, ``read`` or ``lower_goals``
                returns it.
            ends: The end offset of each partition to wait for.
            asked_us: When ``ends`` were requested from the broker, by the reader's clock.
        """
        self.note_ends(ends, asked_us)
        goal = dict(ends)
        if self._is_reached(goal):
            return True
        self._goals[waiter] = goal, asked_us
        return False

    def lower_goals(self, ends: Mapping[Partition, int], asked_us: int) -> list[Waiter]:
        """Lower each offset in a goal to the end of its partition, if the offset is beyond this end.

        An offset can be beyond the end after the log was truncated.

        Args:
            ends: The end offset of each partition to check.
            asked_us: Time, by the reader's clock, at which ``ends`` were requested from the broker. Only goals that
                ``set_goal`` added with an earlier ``asked_us`` are lowered.

        Returns:
            The waiters whose goal is reached now. They are removed.
        """
        for goal, set_us in self._goals.values():
            if asked_us > set_us:
                goal.update({p: ends[p] for p, end in goal.items() if ends.get(p, end) < end})
        return self._take_reached()

    def forget_goal(self, waiter: Waiter) -> None:
        self._goals.pop(waiter, None)

    @property
    def lag(self) -> int:
        return sum(max(0, end - self.positions.get(p, 0)) for p, (end, _) in self._ends.items() if p in self.held)

    def _take_reached(self) -> list[Waiter]:
        reached = [waiter for waiter, (goal, _) in self._goals.items() if self._is_reached(goal)]
        for waiter in reached:
            del self._goals[waiter]
        return reached

    def _is_reached(self, goal: Mapping[Partition, int]) -> bool:
        positions = self.positions
        return all(positions.get(partition, -1) >= end for partition, end in goal.items())
