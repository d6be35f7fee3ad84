"""Assign partition numbers to the members of a group, in even shares, and move as few numbers as possible.

A partition number is assigned for all topics together, because one process must read all records of a request. Kafka's
sticky assignors assign each topic separately. Kafka's range assignor keeps the topics together, but moves many
partitions when one member joins or leaves.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_INT32: Final = struct.Struct(">i")
_MARK: Final = -1
"""A special value in a list of partition numbers. In the list of a joining member, it means that the member's
``hands_over`` is true. In the list of an assignment, it means that some partition numbers have no owner, because they
are being handed over. Members with an older version of Railbus ignore this value."""


class OwnedPartitions(NamedTuple):
    """What a member tells the group when it rejoins: which partition numbers it owns.

    Attributes:
        generation: The group's generation that assigned ``numbers``.
        hands_over: Whether the member must commit its offsets before another member may get one of ``numbers``.
    """

    generation: int
    numbers: frozenset[int]
    hands_over: bool = False


def sticky_assignment(numbers: Iterable[int], owned: Mapping[str, OwnedPartitions]) -> dict[str, set[int]]:
    """Return each member's partition numbers, in even shares. As many numbers as possible stay with their owner."""
    left = set(numbers)
    members = _latest_first(owned)
    shares: dict[str, set[int]] = {member: set() for member in members}
    size, more = divmod(len(left), len(members))  # each gets ``size``, and ``more`` members get one more
    for member in sorted(members, key=lambda member: (-len(owned[member].numbers & left), members.index(member))):
        most = size + (more > 0)
        kept = sorted(owned[member].numbers & left)[:most]
        more -= len(kept) > size
        shares[member].update(kept)
        left.difference_update(kept)
    for number in sorted(left):
        shares[min(members, key=lambda member: (len(shares[member]), members.index(member)))].add(number)
    return shares


def handovers(shares: Mapping[str, set[int]], owned: Mapping[str, OwnedPartitions]) -> dict[str, set[int]]:
    """Return, for each member, the partition numbers that it owns and must hand over.

    The member must finish its work and commit its offsets before another member gets one of these numbers.
    """
    holders: dict[int, str] = {}
    for member in _latest_first(owned):
        if owned[member].generation > 0:  # else the group removed it, and others may have had its numbers
            for number in owned[member].numbers:
                holders.setdefault(number, member)
    moving: dict[str, set[int]] = {}
    for member, share in shares.items():
        for number in share:
            holder = holders.get(number, member)
            if holder != member and owned[holder].hands_over:
                moving.setdefault(holder, set()).add(number)
    return moving


def _latest_first(owned: Mapping[str, OwnedPartitions]) -> list[str]:
    return sorted(owned, key=lambda member: (-owned[member].generation, member))


class StickyNumberAssignor(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
    """An assignor for aiokafka. It assigns partition numbers with ``sticky_assignment``.

    A partition number stands for the partitions with this number in all topics of the group.

    If a member's ``OwnedPartitions.hands_over`` is true, the group takes a partition number from this member in two
    rebalances, as in Kafka's cooperative protocol. The first rebalance assigns the number to no member. The second
    rebalance assigns the number to another member.

    Args:
        counts: How many partitions each topic has, as far as this is known.

    Attributes:
        handing_over: Partition numbers that a first rebalance took from this member, and that no second rebalance has
            assigned to another member yet.
        unfinished: Whether at least one member of the group has partition numbers in its ``handing_over``.
    """

    # The name of Kafka's range assignor, which members with an older version of Railbus offer. A group uses an assignor
    # that all members offer, and aiokafka would join once for each of two assignors. Members with either assignor can
    # share a group, because both assign a partition number for all topics together.
    name: str = "range"
    version: Final = 0

    def __init__(self, owned: Callable[[], OwnedPartitions], counts: Mapping[str, int] | None = None) -> None:
        self._owned = owned
        self._counts = dict(counts or {})  # the last known number of partitions of each topic
        self.handing_over: frozenset[int] = frozenset()
        self.unfinished = False

    def assign(  # in aiokafka a class method, but it may be called on an instance
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        # The metadata may lack a topic for a moment, for example while a broker starts. Members that got partitions of
        # only some of their topics could not work.
        self._counts |= {topic: len(found) for topic in topics if (found := cluster.partitions_for_topic(topic))}
        counts = {topic: self._counts.get(topic, 0) for topic in topics}
        owned = {member: _decode(metadata.user_data) for member, metadata in members.items()}
        shares = sticky_assignment(range(max(counts.values(), default=0)), owned)
        moving = handovers(shares, owned)
        nobodys = {number for numbers in moving.values() for number in numbers}
        return {
            member: ConsumerProtocolMemberAssignment(
                self.version,
                [
                    (t, sorted(n for n in shares[member] - nobodys if n < counts[t]))
                    for t in sorted(metadata.subscription)
                ],
                _encode(moving.get(member, ()), mark=True) if nobodys else b"",
            )
            for member, metadata in members.items()
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        owned = self._owned()
        data = _INT32.pack(owned.generation) + _encode(owned.numbers, mark=owned.hands_over)
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        numbers = _numbers(assignment.user_data)
        self.unfinished = _MARK in numbers
        self.handing_over = frozenset(numbers) - {_MARK}


def _encode(numbers: Iterable[int], *, mark: bool) -> bytes:
    return b"".join(map(_INT32.pack, sorted({*numbers, _MARK} if mark else numbers)))


def _numbers(data: bytes | None) -> list[int]:
    return [value for (value,) in _INT32.iter_unpack(data)] if data and not len(data) % _INT32.size else []


def _decode(data: bytes | None) -> OwnedPartitions:
    if not (values := _numbers(data)):  # a member with another version
        return OwnedPartitions(-1, frozenset())
    generation, *numbers = values
    return OwnedPartitions(generation, frozenset(numbers) - {_MARK}, _MARK in numbers)
