"""Decide which member of a group gets which partition numbers: even shares first, then as few moves as possible.

A number means that partition of every topic, because one process reads all records of a request. Kafka's sticky
assignors assign the topics one by one; its range assignor keeps the topics together and moves everything.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_GENERATION: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">i")
_MARK: Final = -1
"""Among a member's numbers it means that the member can hand over; in an assignment, that numbers are handed over now.
Older members ignore it, because no topic has a partition of this number."""


class OwnedPartitions(NamedTuple):
    """What a member owns when it rejoins the group.

    Attributes:
        generation: The generation that assigned these numbers. If two members claim one, the later generation wins.
        hands_over: Whether the member commits what it has begun before another may have one of its numbers.
    """

    generation: int
    numbers: frozenset[int]
    hands_over: bool = False


def sticky_assignment(numbers: Iterable[int], owned: Mapping[str, OwnedPartitions]) -> dict[str, set[int]]:
    """Share numbers out evenly and move as few as possible. The same arguments give the same shares."""
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
    """Return, per member, the numbers that it must give up because another one should have them now.

    Members that need not commit before another one has the number are left out.
    """
    holders: dict[int, str] = {}
    for member in _latest_first(owned):
        if owned[member].generation > 0:  # else the group has forgotten it, and others may have had its numbers
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
    """``sticky_assignment`` as an aiokafka assignor.

    It has the name of Kafka's range assignor, which older members know: a group uses one that all offer, and aiokafka
    cannot offer two (it would join once for each). Either may assign for the other: both keep numbers together.

    A number moves from a member that hands over in two rebalances, as in Kafka's cooperative protocol: the first
    assigns it to nobody, its owner commits and rejoins, and the second assigns it to its new owner.

    Attributes:
        handing_over: The numbers of this member that the last assignment gave to nobody.
        unfinished: Whether the last assignment gave any member's number to nobody.
    """

    name: str = "range"
    version: Final = 0

    def __init__(self, owned: Callable[[], OwnedPartitions]) -> None:
        self._owned = owned
        self.handing_over: frozenset[int] = frozenset()
        self.unfinished = False

    def assign(  # aiokafka's are class methods; it calls them on instances as well
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign all numbers; each member gets those of its own topics."""
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
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
        """Return the topics that are read and the numbers that are owned."""
        owned = self._owned()
        data = _GENERATION.pack(owned.generation) + _encode(owned.numbers, mark=owned.hands_over)
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Note which numbers this member has to hand over before others get them."""
        numbers = _numbers(assignment.user_data)
        self.unfinished = _MARK in numbers
        self.handing_over = frozenset(numbers) - {_MARK}


def _encode(numbers: Iterable[int], *, mark: bool) -> bytes:
    return b"".join(map(_NUMBER.pack, sorted({*numbers, _MARK} if mark else numbers)))


def _numbers(data: bytes | None) -> list[int]:
    return [value for (value,) in _NUMBER.iter_unpack(data)] if data and not len(data) % _NUMBER.size else []


def _decode(data: bytes | None) -> OwnedPartitions:
    """Decode a member's user data; nothing is owned in data of another format."""
    if not (values := _numbers(data)):
        return OwnedPartitions(-1, frozenset())
    generation, *numbers = values
    return OwnedPartitions(generation, frozenset(numbers) - {_MARK}, _MARK in numbers)
