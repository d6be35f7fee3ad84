"""Who is in a group: members by id, static members by instance, ids that were promised, the protocols they share."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from services.broker.codes import Code
from services.broker.members import Join, Member, Peer
from services.broker.wire import Malformed, Reader

MAX_MEMBERS = 1000  # of one group, ids that were promised but not used included


class Roster:
    """The members of one group."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._promised: dict[str, int] = {}  # ids handed out, until when

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    @property
    def full(self) -> bool:
        """No further member is taken."""
        return len(self._members) + len(self._promised) >= MAX_MEMBERS

    def known(self, member_id: str, instance_id: str | None) -> Code:
        """Whether this is a member, and still the one behind its instance."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return Code.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self._members else Code.UNKNOWN_MEMBER_ID

    def static(self, instance_id: str | None) -> Member | None:
        """The member behind an instance."""
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return self._members[member_id] if member_id is not None else None

    # Members come and go

    def add(self, member: Member) -> None:
        """A new member."""
        self._members[member.id] = member
        if member.join.instance_id is not None:
            self._static[member.join.instance_id] = member.id

    def remove(self, member: Member) -> None:
        """A member is gone."""
        del self._members[member.id]
        if member.join.instance_id is not None:
            del self._static[member.join.instance_id]

    def replace(self, old: Member, new: Member) -> None:
        """A static member is back under a new id; it keeps its place among the others."""
        self._members = {new.id if key == old.id else key: value for key, value in self._members.items()}
        self.add(new)

    # Promised ids

    def promise(self, member_id: str, until_ms: int) -> None:
        """A member is to come back with this id."""
        self._promised[member_id] = until_ms

    def keep_promise(self, member_id: str) -> bool:
        """It came back, or said that it will not; False when nothing was promised."""
        return self._promised.pop(member_id, None) is not None

    def break_promises(self, now_ms: int) -> None:
        """Those who did not come back in time are expected no longer."""
        self._promised = {each: until for each, until in self._promised.items() if until > now_ms}

    @property
    def expected(self) -> Iterable[int]:
        """Until when each promised id is expected."""
        return self._promised.values()

    # All of them

    def everyone_joined(self) -> bool:
        """Nobody has to be waited for."""
        return not self._promised and all(member.joining is not None for member in self)

    def longest_rebalance_ms(self) -> int:
        """How long the slowest member may take to rejoin."""
        return max((member.join.rebalance_ms for member in self), default=0)

    def protocol_type(self) -> str:
        """What kind of group it is ("consumer"); empty while nobody is in it."""
        return next((member.join.protocol_type for member in self), "")

    def admits(self, asked: Join) -> bool:
        """Whether the others have a protocol in common with this one."""
        if not asked.protocols or not asked.protocol_type:
            return False
        others = [member for member in self if not _is_same(member, asked)]
        if any(member.join.protocol_type != asked.protocol_type for member in others):
            return False
        common = _common(others)
        return common is None or any(offer.name in common for offer in asked.protocols)

    def choose_protocol(self) -> str | None:
        """Of the protocols that all know, the one most of them would like best."""
        common = _common(self)
        if not common:
            return None
        votes: dict[str, int] = {}
        for member in self:
            liked = next(offer.name for offer in member.join.protocols if offer.name in common)
            votes[liked] = votes.get(liked, 0) + 1
        return max(votes, key=votes.__getitem__)

    def peers(self, protocol: str | None) -> tuple[Peer, ...]:
        """Everyone, as the leader is told of them."""
        return tuple(Peer(each.id, each.join.instance_id, each.metadata(protocol)) for each in self)


def successor(old: Member, asked: Join, new_id: str, now_ms: int) -> Member:
    """The member that takes a static member's place: a new id, the old assignment."""
    asked = replace(asked, member_id=new_id)
    return Member(
        id=new_id, join=asked, deadline_ms=now_ms + asked.session_ms, assignment=old.assignment, synced=old.synced
    )


def alike(old: Join, new: Join) -> bool:
    """Whether a static member that is back wants what it wanted before.

    Kafka does not ask: there a member that begins to read another topic gets its old assignment until somebody else
    makes the group rebalance. What an assignor says of the member beside its topics may differ.
    """
    return [(each.name, _wish(each.metadata)) for each in old.protocols] == [
        (each.name, _wish(each.metadata)) for each in new.protocols
    ]


def _wish(metadata: bytes) -> list[str] | bytes:
    """The topics in a consumer's subscription (version, topics, user data), sorted; what is none as it is."""
    reader = Reader(metadata)
    try:
        reader.i16()
        return sorted(reader.string() for _ in range(reader.i32()))
    except Malformed:
        return metadata


def _is_same(member: Member, asked: Join) -> bool:
    if member.id == asked.member_id:
        return True
    return asked.instance_id is not None and member.join.instance_id == asked.instance_id


def _common(members: Iterable[Member]) -> set[str] | None:
    common: set[str] | None = None
    for member in members:
        names = {offer.name for offer in member.join.protocols}
        common = names if common is None else common & names
    return common
