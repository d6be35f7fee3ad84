"""One consumer group: Kafka's rebalance protocol as a state machine. Pure: `now_ms` and new ids are arguments.

Every request that may wait carries a ticket; the calls return the answers that are due, for any ticket.
Static members (KIP-345) keep their assignment when they come back under a new member id.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from services.broker.codes import Code
from services.broker.members import Answer, Join, Joined, Member, Peer, State, Synced, Ticket

MAX_MEMBERS = 1000  # members of one group, ids that were handed out but not used included


class Group:
    """A consumer group."""

    def __init__(self, group_id: str, *, initial_delay_ms: int = 0) -> None:
        self.id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._promised: dict[str, int] = {}  # ids handed out, until when
        self._initial_delay_ms = initial_delay_ms
        self._earliest_ms = 0  # a rebalance from Empty waits this long for company
        self._latest_ms = 0  # a rebalance or an assignment waits this long at most
        self._due: list[Answer] = []

    # What members ask

    def join(self, asked: Join, ticket: Ticket, new_id: str, now_ms: int) -> list[Answer]:
        """A member joins or rejoins; `new_id` is for one that has no id yet."""
        code, member_id = self._admit(asked, ticket, new_id, now_ms)
        if code is not Code.NONE:
            self._due.append(Joined(ticket=ticket, code=code, member_id=member_id))
        self._maybe_complete(now_ms)
        return self._answers()

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        ticket: Ticket,
        now_ms: int,
    ) -> list[Answer]:
        """A member asks for its assignment; the leader brings everyone's."""
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE and self.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE:
            self._due.append(Synced(ticket=ticket, code=code))
            return self._answers()
        member = self.members[member_id]
        member.heard(now_ms)
        member.synced = True
        if self.state is State.STABLE:
            self._due.append(Synced(ticket=ticket, assignment=member.assignment))
            return self._answers()
        self._displace_sync(member, Code.REBALANCE_IN_PROGRESS)
        member.syncing = ticket
        if member_id == self.leader:
            self._assign(assignments, now_ms)
        return self._answers()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        """A member is alive, and asks whether it must rejoin."""
        if member_id in self._promised:
            return Code.NONE
        code = self._check(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self.members[member_id].heard(now_ms)
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[Code, list[Answer]]:
        """A member goes; a static one may be named by its instance alone."""
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        if self._promised.pop(member_id, None) is not None:
            self._maybe_complete(now_ms)
            return Code.NONE, self._answers()
        code = self._known(member_id, instance_id)
        if code is Code.NONE:
            self._remove(self.members[member_id], now_ms)
        return code, self._answers()

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        """Whether offsets may be committed by this member (or, while nobody is in the group, by anybody)."""
        if generation < 0 and not self.members:
            return Code.NONE
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE:
            if self.state is State.COMPLETING:
                return Code.REBALANCE_IN_PROGRESS
            self.members[member_id].heard(now_ms)
        return code

    def tick(self, now_ms: int) -> list[Answer]:
        """Time has passed: end sessions and waits that are over."""
        self._promised = {each: until for each, until in self._promised.items() if until > now_ms}
        for member in [m for m in self.members.values() if not m.waits and m.deadline_ms <= now_ms]:
            self._remove(member, now_ms)
        if self.state is State.COMPLETING and self._latest_ms <= now_ms:
            self._drop_unsynced(now_ms)
        self._maybe_complete(now_ms)
        return self._answers()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next; None when never."""
        times = [member.deadline_ms for member in self.members.values() if not member.waits]
        times.extend(self._promised.values())
        if self.state is State.PREPARING:
            times.append(self._earliest_ms if self._everyone_joined() else self._latest_ms)
        elif self.state is State.COMPLETING:
            times.append(self._latest_ms)
        return min(times, default=None)

    @property
    def idle(self) -> bool:
        """Nobody is in it, nobody was promised an id."""
        return not self.members and not self._promised

    # Admission

    def _admit(self, asked: Join, ticket: Ticket, new_id: str, now_ms: int) -> tuple[Code, str]:
        """Let a member in or say why not: (code, the member id to answer)."""
        if not self._compatible(asked):
            return Code.INCONSISTENT_GROUP_PROTOCOL, asked.member_id
        if asked.member_id:
            return self._admit_known(asked, ticket, now_ms), asked.member_id
        known = self._static.get(asked.instance_id) if asked.instance_id is not None else None
        if known is not None:
            self._replace_static(self.members[known], asked, ticket, new_id, now_ms)
            return Code.NONE, new_id
        if len(self.members) + len(self._promised) >= MAX_MEMBERS:
            return Code.GROUP_MAX_SIZE_REACHED, ""
        if asked.instance_id is None and asked.id_required:
            self._promised[new_id] = now_ms + asked.session_ms
            return Code.MEMBER_ID_REQUIRED, new_id
        self._add(replace(asked, member_id=new_id), ticket, now_ms)
        return Code.NONE, new_id

    def _admit_known(self, asked: Join, ticket: Ticket, now_ms: int) -> Code:
        if self._promised.pop(asked.member_id, None) is not None:
            self._add(asked, ticket, now_ms)
            return Code.NONE
        code = self._known(asked.member_id, asked.instance_id)
        if code is not Code.NONE:
            return code
        member = self.members[asked.member_id]
        unchanged = member.join.protocols == asked.protocols
        rejoins = self.state is State.PREPARING or not unchanged
        if rejoins or (self.state is State.STABLE and member.id == self.leader):
            self._update(member, asked, ticket, now_ms)
            self._prepare(now_ms)
        else:
            # It lost the answer of this generation, or a follower asks again: nothing has changed.
            member.heard(now_ms)
            self._due.append(self._joined(member, ticket))
        return Code.NONE

    def _compatible(self, asked: Join) -> bool:
        if not asked.protocols or not asked.protocol_type:
            return False
        others = [member for member in self.members.values() if not self._is_same(member, asked)]
        if any(member.join.protocol_type != asked.protocol_type for member in others):
            return False
        common = _common_protocols(others)
        return common is None or any(offer.name in common for offer in asked.protocols)

    @staticmethod
    def _is_same(member: Member, asked: Join) -> bool:
        if member.id == asked.member_id:
            return True
        return asked.instance_id is not None and member.join.instance_id == asked.instance_id

    def _add(self, asked: Join, ticket: Ticket, now_ms: int) -> None:
        member = Member(id=asked.member_id, join=asked, deadline_ms=now_ms + asked.session_ms, joining=ticket)
        self.members[member.id] = member
        if asked.instance_id is not None:
            self._static[asked.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self._prepare(now_ms)

    def _update(self, member: Member, asked: Join, ticket: Ticket, now_ms: int) -> None:
        if member.joining is not None:  # the same member asks again: only its newest request is answered in time
            self._due.append(Joined(ticket=member.joining, code=Code.REBALANCE_IN_PROGRESS, member_id=member.id))
        member.join, member.joining = asked, ticket
        member.heard(now_ms)

    def _replace_static(self, old: Member, asked: Join, ticket: Ticket, new_id: str, now_ms: int) -> None:
        """A static member is back as a new process: it takes the old one's place, and the old one is fenced."""
        if old.joining is not None:
            self._due.append(Joined(ticket=old.joining, code=Code.FENCED_INSTANCE_ID, member_id=old.id))
        self._displace_sync(old, Code.FENCED_INSTANCE_ID)
        leader = self.leader or ""
        asked = replace(asked, member_id=new_id)
        member = Member(id=new_id, join=asked, deadline_ms=now_ms + asked.session_ms, assignment=old.assignment)
        member.synced = old.synced
        self.members = {(new_id if key == old.id else key): value for key, value in self.members.items()}
        self.members[new_id] = member
        assert asked.instance_id is not None  # noqa: S101 - holds by construction
        self._static[asked.instance_id] = new_id
        if self.leader == old.id:
            self.leader = new_id
        if self.state is State.STABLE and self._choose_protocol() == self.protocol:
            # Told the old leader's id, nobody takes itself for the leader: a stable group needs no new assignment.
            self._due.append(replace(self._joined(member, ticket), leader=leader, peers=()))
            return
        member.joining = ticket
        self._prepare(now_ms)

    # Rebalance

    def _prepare(self, now_ms: int) -> None:
        """Everyone must join anew."""
        if self.state is State.PREPARING:
            return
        if self.state is State.EMPTY:
            self._earliest_ms = now_ms + self._initial_delay_ms
        self.state = State.PREPARING
        self._latest_ms = max(self._earliest_ms, now_ms + self._longest_rebalance_ms())
        for member in self.members.values():
            member.assignment, member.synced = b"", False
            self._displace_sync(member, Code.REBALANCE_IN_PROGRESS)
            if member.joining is None:
                member.heard(now_ms)

    def _everyone_joined(self) -> bool:
        return not self._promised and all(member.joining is not None for member in self.members.values())

    def _maybe_complete(self, now_ms: int) -> None:
        if self.state is not State.PREPARING or now_ms < self._earliest_ms:
            return
        if self._everyone_joined() or now_ms >= self._latest_ms:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """The next generation: those who joined, and static members that are only away."""
        for member in list(self.members.values()):
            if member.joining is None and member.join.instance_id is None:
                self._forget(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            self._latest_ms = now_ms + self._longest_rebalance_ms()
            return
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            return
        self.state, self.protocol = State.COMPLETING, self._choose_protocol()
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self._latest_ms = now_ms + self._longest_rebalance_ms()
        for member in joined:
            assert member.joining is not None  # noqa: S101 - holds by construction
            self._due.append(self._joined(member, member.joining))
            member.joining = None
            member.heard(now_ms)

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.state = State.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                self._due.append(Synced(ticket=member.syncing, assignment=member.assignment))
                member.syncing = None
                member.heard(now_ms)

    def _drop_unsynced(self, now_ms: int) -> None:
        for member in [m for m in self.members.values() if not m.synced]:
            self._forget(member)
        if self.members:
            self._prepare(now_ms)
        else:
            self._empty()

    def _remove(self, member: Member, now_ms: int) -> None:
        self._forget(member)
        if self.state in {State.STABLE, State.COMPLETING}:
            self._prepare(now_ms)
        self._maybe_complete(now_ms)

    def _empty(self) -> None:
        self.generation += 1
        self.state, self.protocol, self.leader = State.EMPTY, None, None

    def _forget(self, member: Member) -> None:
        if member.joining is not None:
            self._due.append(Joined(ticket=member.joining, code=Code.UNKNOWN_MEMBER_ID, member_id=member.id))
        self._displace_sync(member, Code.UNKNOWN_MEMBER_ID)
        del self.members[member.id]
        if member.join.instance_id is not None:
            self._static.pop(member.join.instance_id, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _displace_sync(self, member: Member, code: Code) -> None:
        if member.syncing is not None:
            self._due.append(Synced(ticket=member.syncing, code=code))
            member.syncing = None

    # Small things

    def _known(self, member_id: str, instance_id: str | None) -> Code:
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return Code.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        code = self._known(member_id, instance_id)
        if code is Code.NONE and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return code

    def _joined(self, member: Member, ticket: Ticket) -> Joined:
        return Joined(
            ticket=ticket,
            generation=self.generation,
            protocol=self.protocol or "",
            leader=self.leader or "",
            member_id=member.id,
            peers=self._peers() if member.id == self.leader else (),
        )

    def _peers(self) -> tuple[Peer, ...]:
        return tuple(Peer(m.id, m.join.instance_id, m.metadata(self.protocol)) for m in self.members.values())

    def _longest_rebalance_ms(self) -> int:
        return max((member.join.rebalance_ms for member in self.members.values()), default=0)

    def _choose_protocol(self) -> str | None:
        """Of the protocols that all know, the one most of them would like best."""
        common = _common_protocols(self.members.values())
        if not common:
            return None
        votes: dict[str, int] = {}
        for member in self.members.values():
            liked = next(offer.name for offer in member.join.protocols if offer.name in common)
            votes[liked] = votes.get(liked, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _answers(self) -> list[Answer]:
        due, self._due = self._due, []
        return due


def _common_protocols(members: Iterable[Member]) -> set[str] | None:
    common: set[str] | None = None
    for member in members:
        names = {offer.name for offer in member.join.protocols}
        common = names if common is None else common & names
    return common
