"""The members of a group: by id, static members by instance, reserved ids, and the protocols they share."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from services.broker.groups.members import JoinRequest, MemberMetadata, Peer
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.wire import MalformedRequest, Reader

MAX_MEMBERS = 1000  # of one group, reserved ids included


class Roster:
    """The members of one group."""

    def __init__(self) -> None:
        self._members: dict[str, MemberMetadata] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._reserved: dict[str, int] = {}  # id -> when it expires

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
        """Return an error unless this is a member, and its instance id was not taken over by another."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def static(self, instance_id: str | None) -> MemberMetadata | None:
        """Return the member of an instance."""
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
        """Replace a static member by one with a new id, at the same position."""
        self._members = {new.id if key == old.id else key: value for key, value in self._members.items()}
        self.add(new)

    # Reserved ids

    def reserve_id(self, member_id: str, until_ms: int) -> None:
        """Reserve an id for a member that will join with it."""
        self._reserved[member_id] = until_ms

    def take_reserved_id(self, member_id: str) -> bool:
        """Release a reserved id; return whether it was reserved."""
        return self._reserved.pop(member_id, None) is not None

    def expire_reserved_ids(self, now_ms: int) -> None:
        self._reserved = {each: until for each, until in self._reserved.items() if until > now_ms}

    @property
    def reserved_until_ms(self) -> Iterable[int]:
        """Return when each reserved id expires."""
        return self._reserved.values()

    # All members

    def everyone_joined(self) -> bool:
        """Return whether no member and no reserved id is still expected to join."""
        return not self._reserved and all(member.joining is not None for member in self)

    def longest_rebalance_ms(self) -> int:
        """Return how long the slowest member may take to rejoin."""
        return max((member.join.rebalance_ms for member in self), default=0)

    def protocol_type(self) -> str:
        """Return the type of the group ("consumer"); empty without members."""
        return next((member.join.protocol_type for member in self), "")

    def is_compatible(self, request: JoinRequest) -> bool:
        """Return whether the other members share a protocol with this one."""
        if not request.protocols or not request.protocol_type:
            return False
        others = [member for member in self if not _is_same(member, request)]
        if any(member.join.protocol_type != request.protocol_type for member in others):
            return False
        common = _common(others)
        return common is None or any(offer.name in common for offer in request.protocols)

    def choose_protocol(self) -> str | None:
        """Return the protocol that most members prefer, of those that all support."""
        common = _common(self)
        if not common:
            return None
        votes: dict[str, int] = {}
        for member in self:
            preferred = next(offer.name for offer in member.join.protocols if offer.name in common)
            votes[preferred] = votes.get(preferred, 0) + 1
        return max(votes, key=votes.__getitem__)

    def peers(self, protocol: str | None) -> tuple[Peer, ...]:
        """Return all members as the leader sees them."""
        return tuple(Peer(each.id, each.join.instance_id, each.metadata(protocol)) for each in self)


def replacement_member(old: MemberMetadata, request: JoinRequest, new_id: str, now_ms: int) -> MemberMetadata:
    """Return the member that replaces a static one: a new id, the old assignment."""
    request = replace(request, member_id=new_id)
    return MemberMetadata(
        id=new_id, join=request, deadline_ms=now_ms + request.session_ms, assignment=old.assignment, synced=old.synced
    )


def same_subscription(old: JoinRequest, new: JoinRequest) -> bool:
    """Return whether a static member subscribes to the same topics as before its restart.

    Kafka does not check: there a member that begins to read another topic gets its old assignment until another member
    causes a rebalance. The rest of an assignor's metadata may differ.
    """
    return [(each.name, _subscribed_topics(each.metadata)) for each in old.protocols] == [
        (each.name, _subscribed_topics(each.metadata)) for each in new.protocols
    ]


def _subscribed_topics(metadata: bytes) -> list[str] | bytes:
    """Return the sorted topics of a consumer's subscription; other metadata unchanged."""
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
