"""One consumer group: Kafka's rebalance protocol as a state machine. Pure: `now_ms` and new ids are arguments.

Every request that may wait carries a ticket; each call returns the answers that are due, for any ticket.
Static members (KIP-345) keep their assignment when they come back under a new member id. As in Kafka, a group that
was stable is so after a restart of the broker: its members go on without a rebalance.
"""

from collections.abc import Mapping
from dataclasses import replace

from services.broker.codes import Code
from services.broker.members import Answer, Join, Joined, Member, StableGroup, State, Sync, Synced, Ticket
from services.broker.roster import Roster, alike, successor


class Group:
    """A consumer group."""

    def __init__(self, group_id: str, *, initial_delay_ms: int = 0) -> None:
        self.id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members = Roster()
        self._initial_delay_ms = initial_delay_ms
        self._earliest_ms = 0  # a rebalance from Empty waits until then for company
        self._join_by_ms = 0  # while PREPARING: who has not rejoined by then is out
        self._sync_by_ms: int | None = None  # who has not fetched its assignment by then is out
        self._due: list[Answer] = []
        self.kept: StableGroup | None = None  # what a restart finds; another object whenever it has changed

    @classmethod
    def restored(cls, group_id: str, kept: StableGroup, now_ms: int, *, initial_delay_ms: int = 0) -> "Group":
        """The group after a restart; each member has a whole session's time to be heard from."""
        group = cls(group_id, initial_delay_ms=initial_delay_ms)
        group.state, group.kept = State.STABLE, kept
        group.generation, group.protocol, group.leader = kept.generation, kept.protocol, kept.leader
        for join, assignment in kept.members:
            deadline_ms = now_ms + join.session_ms
            group.members.add(
                Member(id=join.member_id, join=join, deadline_ms=deadline_ms, assignment=assignment, synced=True)
            )
        return group

    # What members ask

    def join(self, asked: Join, ticket: Ticket, new_id: str, now_ms: int) -> list[Answer]:
        """A member joins or rejoins; `new_id` is for one that has no id yet."""
        code, member_id = self._admit(asked, ticket, new_id, now_ms)
        if code is not Code.NONE:
            self._due.append(Joined(ticket=ticket, code=code, member_id=member_id))
        self._maybe_complete(now_ms)
        return self._answers()

    def sync(self, asked: Sync, ticket: Ticket, now_ms: int) -> list[Answer]:
        """A member asks for its assignment; the leader brings everyone's."""
        code = self._check(asked.member_id, asked.instance_id, asked.generation)
        if code is Code.NONE and self.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE:
            self._due.append(Synced(ticket=ticket, code=code))
            return self._answers()
        member = self.members[asked.member_id]
        member.heard(now_ms)
        member.synced = True
        if self.state is State.STABLE:
            self._due.append(Synced(ticket=ticket, assignment=member.assignment))
        else:
            self._due += member.dismiss(Code.REBALANCE_IN_PROGRESS)
            member.syncing = ticket
            if member.id == self.leader:
                self._assign(asked.assignments, now_ms)
        return self._answers()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        """A member is alive, and asks whether it must rejoin."""
        code = self._check(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self.members[member_id].heard(now_ms)
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[Code, list[Answer]]:
        """A member goes; a static one may be named by its instance alone."""
        static = self.members.static(instance_id)
        if static is not None and not member_id:
            member_id = static.id
        if self.members.keep_promise(member_id):
            self._maybe_complete(now_ms)
            return Code.NONE, self._answers()
        code = self.members.known(member_id, instance_id)
        if code is Code.NONE:
            self._remove([self.members[member_id]], now_ms)
        return code, self._answers()

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        """Whether this member may commit offsets (while nobody is in the group, anybody may)."""
        if generation < 0 and not self.members:
            return Code.NONE
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE:
            if self.state is State.COMPLETING:
                return Code.REBALANCE_IN_PROGRESS
            self.members[member_id].heard(now_ms)
        return code

    # Time

    def tick(self, now_ms: int) -> list[Answer]:
        """Time has passed: end the sessions and the waits that are over."""
        self.members.break_promises(now_ms)
        self._remove([each for each in self.members if not each.waits and each.deadline_ms <= now_ms], now_ms)
        if self._sync_by_ms is not None and self._sync_by_ms <= now_ms:
            self._sync_by_ms = None
            self._remove([each for each in self.members if not each.synced], now_ms)
        self._maybe_complete(now_ms)
        return self._answers()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next; None when never."""
        times = [member.deadline_ms for member in self.members if not member.waits]
        times.extend(self.members.expected)
        if self.state is State.PREPARING:
            times.append(self._earliest_ms if self.members.everyone_joined() else self._join_by_ms)
        elif self._sync_by_ms is not None:
            times.append(self._sync_by_ms)
        return min(times, default=None)

    @property
    def idle(self) -> bool:
        """Nobody is in it, nobody is expected."""
        return self.state is State.EMPTY and not self.members.expected

    # Admission

    def _admit(self, asked: Join, ticket: Ticket, new_id: str, now_ms: int) -> tuple[Code, str]:
        """Let a member in, or say why not: (code, the member id to answer with)."""
        if not self.members.admits(asked):
            return Code.INCONSISTENT_GROUP_PROTOCOL, asked.member_id
        if asked.member_id:
            return self._admit_known(asked, ticket, now_ms), asked.member_id
        returned = self.members.static(asked.instance_id)
        if returned is not None:
            self._replace_static(returned, successor(returned, asked, new_id, now_ms), ticket, now_ms)
            return Code.NONE, new_id
        if self.members.full:
            return Code.GROUP_MAX_SIZE_REACHED, ""
        if asked.instance_id is None and asked.id_required:
            self.members.promise(new_id, now_ms + asked.session_ms)
            return Code.MEMBER_ID_REQUIRED, new_id
        self._add(replace(asked, member_id=new_id), ticket, now_ms)
        return Code.NONE, new_id

    def _admit_known(self, asked: Join, ticket: Ticket, now_ms: int) -> Code:
        if self.members.keep_promise(asked.member_id):
            self._add(asked, ticket, now_ms)
            return Code.NONE
        code = self.members.known(asked.member_id, asked.instance_id)
        if code is not Code.NONE:
            return code
        member = self.members[asked.member_id]
        leads = self.state is State.STABLE and member.id == self.leader
        if self.state is State.PREPARING or leads or member.join.protocols != asked.protocols:
            self._due += member.dismiss(Code.REBALANCE_IN_PROGRESS)
            member.join, member.joining = asked, ticket
            self._prepare(now_ms)
        else:
            # It lost the answer of this generation, or a follower asks again: nothing has changed.
            member.heard(now_ms)
            self._due.append(self._joined(member, ticket))
        return Code.NONE

    def _add(self, asked: Join, ticket: Ticket, now_ms: int) -> None:
        self.members.add(Member(id=asked.member_id, join=asked, deadline_ms=now_ms + asked.session_ms, joining=ticket))
        self._prepare(now_ms)

    def _replace_static(self, old: Member, new: Member, ticket: Ticket, now_ms: int) -> None:
        """A static member is back as a new process: it takes the old one's place, and the old one is fenced."""
        self._due += old.dismiss(Code.FENCED_INSTANCE_ID)
        leader = self.leader or ""
        self.members.replace(old, new)
        if self.leader == old.id:
            self.leader = new.id
        unchanged = self.members.choose_protocol() == self.protocol and alike(old.join, new.join)
        if self.state is State.STABLE and unchanged:
            # Told the old leader's id, nobody takes itself for the leader: a stable group needs no new assignment.
            self._due.append(replace(self._joined(new, ticket), leader=leader, peers=()))
            self._remember()
            return
        new.joining = ticket
        self._prepare(now_ms)

    # Rebalance

    def _prepare(self, now_ms: int) -> None:
        """Everyone must join anew."""
        if self.state is State.PREPARING:
            return
        if self.state is State.EMPTY:
            self._earliest_ms = now_ms + self._initial_delay_ms
        self.state, self._sync_by_ms = State.PREPARING, None
        self._join_by_ms = max(self._earliest_ms, now_ms + self.members.longest_rebalance_ms())
        for member in self.members:
            member.assignment, member.synced = b"", False
            if member.syncing is not None:
                self._due += member.dismiss(Code.REBALANCE_IN_PROGRESS)
                member.heard(now_ms)

    def _maybe_complete(self, now_ms: int) -> None:
        if self.state is not State.PREPARING or now_ms < self._earliest_ms:
            return
        if self.members.everyone_joined() or now_ms >= self._join_by_ms:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """The next generation: those who joined, and static members that are only away."""
        for member in [each for each in self.members if each.joining is None and each.join.instance_id is None]:
            self.members.remove(member)
        joined = [member for member in self.members if member.joining is not None]
        if self.members and not joined:
            self._join_by_ms = now_ms + self.members.longest_rebalance_ms()
            return
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader, self.kept = State.EMPTY, None, None, None
            return
        self.state, self.protocol = State.COMPLETING, self.members.choose_protocol()
        self._sync_by_ms = now_ms + self.members.longest_rebalance_ms()
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        for member in joined:
            self._due.append(self._joined(member, member.joining))
            member.joining = None
            member.heard(now_ms)

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.state = State.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                self._due.append(Synced(ticket=member.syncing, assignment=member.assignment))
                member.syncing = None
                member.heard(now_ms)
        self._remember()

    def _remember(self) -> None:
        self.kept = StableGroup(
            generation=self.generation,
            protocol=self.protocol or "",
            leader=self.leader or "",
            members=tuple((member.join, member.assignment) for member in self.members),
        )

    def _remove(self, members: list[Member], now_ms: int) -> None:
        for member in members:
            self._due += member.dismiss(Code.UNKNOWN_MEMBER_ID)
            self.members.remove(member)
        if members and self.state in {State.STABLE, State.COMPLETING}:
            self._prepare(now_ms)
        self._maybe_complete(now_ms)

    # Answers

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        code = self.members.known(member_id, instance_id)
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
            peers=self.members.peers(self.protocol) if member.id == self.leader else (),
        )

    def _answers(self) -> list[Answer]:
        due, self._due = self._due, []
        return due
