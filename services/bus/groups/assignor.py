"""Which member of a group gets which partition numbers: sticky, as far as the shares are even.

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


class OwnedPartitions(NamedTuple):
    """What a member owns when it rejoins the group.

    Attributes:
        generation: The generation that assigned these numbers. If two members claim one, the later generation wins.
    """

    generation: int
    numbers: frozenset[int]


def sticky_assignment(numbers: Iterable[int], owned: Mapping[str, OwnedPartitions]) -> dict[str, set[int]]:
    """Share numbers out evenly and move as few as possible. The same arguments give the same shares."""
    left = set(numbers)
    members = sorted(owned, key=lambda member: (-owned[member].generation, member))
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


class StickyNumberAssignor(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
    """``sticky_assignment`` as an aiokafka assignor.

    It has the name of Kafka's range assignor, which older members know: a group uses one that all offer, and aiokafka
    cannot offer two (it would join once for each). Either may assign for the other: both keep numbers together.
    """

    name: str = "range"
    version: Final = 0

    def __init__(self, owned: Callable[[], OwnedPartitions]) -> None:
        self._owned = owned

    def assign(  # aiokafka's are class methods; it calls them on instances as well
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign all numbers; each member gets those of its own topics."""
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        shares = sticky_assignment(
            range(max(counts.values(), default=0)),
            {member: _decode(metadata.user_data) for member, metadata in members.items()},
        )
        return {
            member: ConsumerProtocolMemberAssignment(
                self.version,
                [(t, sorted(n for n in shares[member] if n < counts[t])) for t in sorted(metadata.subscription)],
                b"",
            )
            for member, metadata in members.items()
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return the topics that are read and the numbers that are owned."""
        owned = self._owned()
        data = _GENERATION.pack(owned.generation) + b"".join(map(_NUMBER.pack, sorted(owned.numbers)))
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Do nothing: ``metadata`` asks for the owned numbers at the next join."""


def _decode(data: bytes | None) -> OwnedPartitions:
    """Decode a member's user data; nothing is owned in data of another format."""
    if not data or len(data) % _NUMBER.size:
        return OwnedPartitions(-1, frozenset())
    generation, *numbers = (value for (value,) in _NUMBER.iter_unpack(data))
    return OwnedPartitions(generation, frozenset(numbers))
