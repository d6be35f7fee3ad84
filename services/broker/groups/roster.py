"""The members and the reserved member ids of a consumer group."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from services.broker.groups.members import JoinRequest, MemberMetadata, Peer
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.wire import MalformedRequest, Reader

MAX_MEMBERS = 1000  # of one group, reserved ids included


class Roster:
    def __init__(self) -> None:
        self._members: dict[str, MemberMetadata] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._reserved: dict[str, int] = {}  # member id -> time in ms when the reservation expires

    def __iter__(self) -> Iterator[MemberMetadata]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, member_id: str) -> MemberMetadata:
        return self._members[member_id]

    @property
    def full(self) -> bool:
        return len(self._members) + len(self._reserved) >= MAX_MEMBERS

    def check_id(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return `ErrorCode.NONE` if a member has these ids, otherwise the error code for the client."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def static(self, instance_id: str | None) -> MemberMetadata | None:
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return self._members[member_id] if member_id is not None else None

    # Members

    def add(self, member: MemberMetadata) -> None:
        self._members[member.id] = member
        if member.join.instance_id is not None:
            self._static[member.join.instance_id] = member.id

    def remove(self, member: MemberMetadata) -> None:
        del self._members[member.id]
        if member.join.instance_id is not None:
            del self._static[member.join.instance_id]

    def replace(self, old: MemberMetadata, new: MemberMetadata) -> None:
        self._members = {new.id if key == old.id else key: value for key, value in self._members.items()}
        self.add(new)

    # Reserved ids

    def reserve_id(self, member_id: str, until_ms: int) -> None:
        """Reserve a member id for a client that was told to join again with this id.

        The reservation ends at ``until_ms`` at the latest, in milliseconds of a monotonic clock.
        """
        self._reserved[member_id] = until_ms

    def take_reserved_id(self, member_id: str) -> bool:
        """End the reservation of a member id. Return whether the id was reserved."""
        return self._reserved.pop(member_id, None) is not None

    def expire_reserved_ids(self, now_ms: int) -> None:
        self._reserved = {each: until for each, until in self._reserved.items() if until > now_ms}

    @property
    def reserved_until_ms(self) -> Iterable[int]:
        return self._reserved.values()

    # All members

    def everyone_joined(self) -> bool:
        # A reserved id is for a client that will join soon.
        return not self._reserved and all(member.joining is not None for member in self)

    def longest_rebalance_ms(self) -> int:
        return max((member.join.rebalance_ms for member in self), default=0)

    def protocol_type(self) -> str:
        """Return the protocol type of the group, such as "consumer"; empty if the group has no members."""
        return next((member.join.protocol_type for member in self), "")

    def is_compatible(self, request: JoinRequest) -> bool:
        """Return whether the client that sent ``request`` can be a member together with all other members.

        The request must name a protocol type and at least one assignor. All other members must have this protocol type.
        At least one assignor of the request must be supported by all other members.
        """
        if not request.protocols or not request.protocol_type:
            return False
        others = [member for member in self if not _is_same(member, request)]
        if any(member.join.protocol_type != request.protocol_type for member in others):
            return False
        common = _common(others)
        return common is None or any(offer.name in common for offer in request.protocols)

    def choose_protocol(self) -> str | None:
        """Return the assignor with the most votes; None if the members have no assignor in common."""
        common = _common(self)
        if not common:
            return None
        votes: dict[str, int] = {}
        for member in self:
            preferred = next(offer.name for offer in member.join.protocols if offer.name in common)
            votes[preferred] = votes.get(preferred, 0) + 1
        return max(votes, key=votes.__getitem__)

    def peers(self, protocol: str | None) -> tuple[Peer, ...]:
        return tuple(Peer(each.id, each.join.instance_id, each.metadata(protocol)) for each in self)


def replacement_member(old: MemberMetadata, request: JoinRequest, new_id: str, now_ms: int) -> MemberMetadata:
    request = replace(request, member_id=new_id)
    return MemberMetadata(
        id=new_id, join=request, deadline_ms=now_ms + request.session_ms, assignment=old.assignment, synced=old.synced
    )


def same_subscription(old: JoinRequest, new: JoinRequest) -> bool:
    """Return whether two requests have the same assignors and topics."""
    # Kafka does not compare the topics. There, a static member that subscribes to another topic keeps its old
    # assignment until another member causes a rebalance.
    return [(each.name, _subscribed_topics(each.metadata)) for each in old.protocols] == [
        (each.name, _subscribed_topics(each.metadata)) for each in new.protocols
    ]


def _subscribed_topics(metadata: bytes) -> list[str] | bytes:
    reader = Reader(metadata)
    try:
        reader.i16()
        return sorted(reader.string() for _ in range(reader.i32()))
    except MalformedRequest:
        return metadata


def _is_same(member: MemberMetadata, request: JoinRequest) -> bool:
    if member.id == request.member_id:
        return True
    return request.instance_id is not None and member.join.instance_id == request.instance_id


def _common(members: Iterable[MemberMetadata]) -> set[str] | None:
    common: set[str] | None = None
    for member in members:
        names = {offer.name for offer in member.join.protocols}
        common = names if common is None else common & names
    return common
