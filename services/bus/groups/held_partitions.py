"""Track the partitions of a group member, the next offset of each, and the callers that wait for an offset. No I/O."""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from services.bus.records import Partition, TopicPartitions

Waiter = TypeVar("Waiter", bound=Hashable)


class Assignment(NamedTuple):
    """An assignment of partitions to a member.

    Attributes:
        held: All partitions of the member from now on.
        gained: The partitions of ``held`` that the member did not have before, or must read anew.
        lost: The partitions that the member had before and does not keep. They include those that it must read anew.
    """

    held: TopicPartitions
    gained: TopicPartitions
    lost: TopicPartitions


OnAssigned = Callable[[Assignment], None]


class HeldPartitions(Generic[Waiter]):
    """The partitions of one reader. If an assignment keeps a partition, the partition keeps its position."""

    __slots__ = ("_ends", "_goals", "_known_us", "held", "positions")

    def __init__(self) -> None:
        self.held: TopicPartitions = frozenset()
        """All partitions of the last assignment."""
        self.positions: dict[Partition, int] = {}
        """The next offset to read, for each partition whose start offset is known."""
        self._goals: dict[Waiter, dict[Partition, int]] = {}
        self._ends: dict[Partition, tuple[int, int]] = {}  # the last known end, and when it was asked for
        self._known_us: dict[Partition, int] = {}

    @property
    def without_position(self) -> TopicPartitions:
        return frozenset(each for each in self.held if each not in self.positions)

    def assign(
        self, partitions: TopicPartitions, anew: TopicPartitions = frozenset()
    ) -> tuple[Assignment, list[Waiter]]:
        """Replace the held partitions by ``partitions``, and remove the waiters for offsets of lost partitions.

        A partition in ``anew`` that was held before counts as lost and as gained. Return the assignment and the
        removed waiters.
        """
        kept = (self.held & partitions) - anew
        lost = self.held - kept
        self.held = partitions
        for partition in lost:
            self.positions.pop(partition, None)
            self._ends.pop(partition, None)
            self._known_us.pop(partition, None)
        missed = [waiter for waiter, goal in self._goals.items() if not lost.isdisjoint(goal)]
        for waiter in missed:
            del self._goals[waiter]
        return Assignment(partitions, partitions - kept, lost), missed

    def start_at(self, starts: Mapping[Partition, int]) -> list[Waiter]:
        """Set the positions of held partitions that have none. Return the waiters whose offsets are all reached."""
        for partition, start in starts.items():
            if partition in self.held:
                self.positions.setdefault(partition, start)
        return self._take_reached()

    def read(self, progress: Mapping[Partition, int]) -> list[Waiter]:
        """Record the next offset of each partition. Return the waiters whose offsets are all reached."""
        self.positions.update(progress)
        return self._take_reached() if self._goals else []

    def note_ends(self, ends: Mapping[Partition, int], asked_us: int) -> None:
        """Record the end offsets that the broker has returned to a request sent at ``asked_us``."""
        for partition, end in ends.items():
            self._known_us[partition] = self.read_up_to_us(partition)
            self._ends[partition] = (end, asked_us)

    def read_up_to_us(self, partition: Partition) -> int:
        """Return the time of the newest request for the end offset that reading has reached; 0 if there is none.

        All records that are not read yet were appended after this time.
        """
        end, asked_us = self._ends.get(partition, (0, 0))
        return asked_us if self.positions.get(partition, -1) >= end else self._known_us.get(partition, 0)

    def set_goal(self, waiter: Waiter, ends: Mapping[Partition, int], asked_us: int) -> bool:
        """Register a waiter for the end offsets ``ends``. If reading has reached them all already, only return true."""
        self.note_ends(ends, asked_us)
        goal = dict(ends)
        if self._is_reached(goal):
            return True
        self._goals[waiter] = goal
        return False

    def forget_goal(self, waiter: Waiter) -> None:
        self._goals.pop(waiter, None)

    @property
    def lag(self) -> int:
        """Return the number of records between the positions and the last known end offsets."""
        return sum(max(0, end - self.positions.get(p, 0)) for p, (end, _) in self._ends.items() if p in self.held)

    def _take_reached(self) -> list[Waiter]:
        reached = [waiter for waiter, goal in self._goals.items() if self._is_reached(goal)]
        for waiter in reached:
            del self._goals[waiter]
        return reached

    def _is_reached(self, goal: Mapping[Partition, int]) -> bool:
        positions = self.positions
        return all(positions.get(partition, -1) >= end for partition, end in goal.items())
