"""Who in a group gets which partition numbers: everybody keeps what it has, as far as the shares are fair.

A number stands for that partition of every topic, because what is said about one request is read by one process.
Kafka's sticky assignors deal out the topics one by one; its range assignor keeps the topics together and moves
everything.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_GENERATION: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">i")


class Claim(NamedTuple):
    """What a member holds when the group is joined again.

    Attributes:
        generation: Of the group when it was dealt this; one that the group has forgotten claims less than any other.
        numbers: The partition numbers.
    """

    generation: int
    numbers: frozenset[int]


def deal(numbers: Iterable[int], claims: Mapping[str, Claim]) -> dict[str, set[int]]:
    """Share numbers out evenly; as few as possible change hands. The same arguments give the same shares."""
    left = set(numbers)
    members = sorted(claims, key=lambda member: (-claims[member].generation, member))
    shares: dict[str, set[int]] = {member: set() for member in members}
    size, more = divmod(len(left), len(members))  # the share of each, and how many get one more
    for member in sorted(members, key=lambda member: (-len(claims[member].numbers & left), members.index(member))):
        most = size + (more > 0)
        kept = sorted(claims[member].numbers & left)[:most]
        more -= len(kept) > size
        shares[member].update(kept)
        left.difference_update(kept)
    for number in sorted(left):
        shares[min(members, key=lambda member: (len(shares[member]), members.index(member)))].add(number)
    return shares


class StickyByNumber(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
    """aiokafka's side of ``deal``.

    It goes by the name of Kafka's range assignor, which older members know: a group uses one that all offer, and
    aiokafka cannot offer two (it would join once for each). Either may deal for the other: both keep numbers together.

    Args:
        claim: What this member holds now.
    """

    name: str = "range"
    version: Final = 0

    def __init__(self, claim: Callable[[], Claim]) -> None:
        self._claim = claim

    def assign(  # aiokafka's are class methods; it calls them on instances as well
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Deal out all numbers; each member gets them of the topics that it reads."""
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        shares = deal(
            range(max(counts.values(), default=0)),
            {member: _read(metadata.user_data) for member, metadata in members.items()},
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
        """Say which topics are read and what is held."""
        claim = self._claim()
        data = _GENERATION.pack(claim.generation) + b"".join(map(_NUMBER.pack, sorted(claim.numbers)))
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Nothing: what is held is asked for when the group is joined again."""


def _read(data: bytes | None) -> Claim:
    """The claim in a member's user data; none in data that we did not write."""
    if not data or len(data) % _NUMBER.size:
        return Claim(-1, frozenset())
    generation, *numbers = (value for (value,) in _NUMBER.iter_unpack(data))
    return Claim(generation, frozenset(numbers))
