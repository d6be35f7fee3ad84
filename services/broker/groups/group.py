"""Kafka's rebalance protocol for one consumer group, as a state machine without clock and I/O.

Methods return all responses that are due now. The ticket in a response identifies its request.
"""

from collections.abc import Mapping
from dataclasses import replace

from services.broker.groups.members import (
    GroupResponse,
    GroupState,
    JoinRequest,
    JoinResponse,
    MemberMetadata,
    RequestTicket,
    StableGroup,
    SyncRequest,
    SyncResponse,
)
from services.broker.groups.roster import Roster, replacement_member, same_subscription
from services.broker.protocol.error_codes import ErrorCode


class ConsumerGroup:
    def __init__(self, group_id: str, *, initial_delay_ms: int = 0) -> None:
        self.id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members = Roster()
        self._initial_delay_ms = initial_delay_ms
        self._earliest_ms = 0  # a rebalance of an empty group waits until this time for more members
        self._join_by_ms = 0  # while PREPARING: members that have not rejoined by this time are removed
        self._sync_by_ms: int | None = None  # members that have not sent SyncGroup by this time are removed
        self._due: list[GroupResponse] = []
        self.stable: StableGroup | None = None  # the state to store; each change creates a new object

    @classmethod
    def restored(cls, group_id: str, stable: StableGroup, now_ms: int, *, initial_delay_ms: int = 0) -> "ConsumerGroup":
        """Return a group as it was before a restart of the broker. Each member's session timeout starts again."""
        group = cls(group_id, initial_delay_ms=initial_delay_ms)
        group.state, group.stable = GroupState.STABLE, stable
        group.generation, group.protocol, group.leader = stable.generation, stable.protocol, stable.leader
        for join, assignment in stable.members:
            deadline_ms = now_ms + join.session_ms
            group.members.add(
                MemberMetadata(
                    id=join.member_id, join=join, deadline_ms=deadline_ms, assignment=assignment, synced=True
                )
            )
        return group

    # Requests

    def join(self, request: JoinRequest, ticket: RequestTicket, new_id: str, now_ms: int) -> list[GroupResponse]:
        """Add a member, or let a member rejoin. A client that has no member id yet gets `new_id`."""
        code, member_id = self._admit(request, ticket, new_id, now_ms)
        if code is not ErrorCode.NONE:
            self._due.append(JoinResponse(ticket=ticket, code=code, member_id=member_id))
        self._maybe_complete(now_ms)
        return self._responses()

    def sync(self, request: SyncRequest, ticket: RequestTicket, now_ms: int) -> list[GroupResponse]:
        code = self._check(request.member_id, request.instance_id, request.generation)
        if code is ErrorCode.NONE and self.state is GroupState.PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE:
            self._due.append(SyncResponse(ticket=ticket, code=code))
            return self._responses()
        member = self.members[request.member_id]
        member.renew_session(now_ms)
        member.synced = True
        if self.state is GroupState.STABLE:
            self._due.append(SyncResponse(ticket=ticket, assignment=member.assignment))
        else:
            self._due += member.fail_pending(ErrorCode.REBALANCE_IN_PROGRESS)
            member.syncing = ticket
            if member.id == self.leader:
                self._assign(request.assignments, now_ms)
        return self._responses()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Renew a member's session. Return `REBALANCE_IN_PROGRESS` if the member must rejoin."""
        code = self._check(member_id, instance_id, generation)
        if code is not ErrorCode.NONE:
            return code
        self.members[member_id].renew_session(now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[ErrorCode, list[GroupResponse]]:
        """Remove a member. For a static member, `member_id` may be empty."""
        static = self.members.static(instance_id)
        if static is not None and not member_id:
            member_id = static.id
        if self.members.take_reserved_id(member_id):
            self._maybe_complete(now_ms)
            return ErrorCode.NONE, self._responses()
        code = self.members.check_id(member_id, instance_id)
        if code is ErrorCode.NONE:
            self._remove([self.members[member_id]], now_ms)
        return code, self._responses()

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Return `NONE` if the client may commit offsets for the group, otherwise the error."""
        if generation < 0 and not self.members:
            return ErrorCode.NONE
        code = self._check(member_id, instance_id, generation)
        if code is ErrorCode.NONE:
            if self.state is GroupState.COMPLETING:
                return ErrorCode.REBALANCE_IN_PROGRESS
            self.members[member_id].renew_session(now_ms)
        return code

    # Time

    def tick(self, now_ms: int) -> list[GroupResponse]:
        """Remove the members whose session has expired, and complete the rebalance if it is due."""
        self.members.expire_reserved_ids(now_ms)
        self._remove([each for each in self.members if not each.waits and each.deadline_ms <= now_ms], now_ms)
        if self._sync_by_ms is not None and self._sync_by_ms <= now_ms:
            self._sync_by_ms = None
            self._remove([each for each in self.members if not each.synced], now_ms)
        self._maybe_complete(now_ms, ticks=True)
        return self._responses()

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` must be called next; None if nothing can time out."""
        times = [member.deadline_ms for member in self.members if not member.waits]
        times.extend(self.members.reserved_until_ms)
        if self.state is GroupState.PREPARING:
            times.append(self._earliest_ms if self.members.everyone_joined() else self._join_by_ms)
        elif self._sync_by_ms is not None:
            times.append(self._sync_by_ms)
        return min(times, default=None)

    @property
    def idle(self) -> bool:
        """Return whether the group has no members and no reserved member ids."""
        return self.state is GroupState.EMPTY and not self.members.reserved_until_ms

    # Admission

    def _admit(self, request: JoinRequest, ticket: RequestTicket, new_id: str, now_ms: int) -> tuple[ErrorCode, str]:
        if not self.members.is_compatible(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id
        if request.member_id:
            return self._admit_known(request, ticket, now_ms), request.member_id
        returned = self.members.static(request.instance_id)
        if returned is not None:
            self._replace_static(returned, replacement_member(returned, request, new_id, now_ms), ticket, now_ms)
            return ErrorCode.NONE, new_id
        if self.members.full:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, ""
        if request.instance_id is None and request.id_required:
            self.members.reserve_id(new_id, now_ms + request.session_ms)
            return ErrorCode.MEMBER_ID_REQUIRED, new_id
        self._add(replace(request, member_id=new_id), ticket, now_ms)
        return ErrorCode.NONE, new_id

    def _admit_known(self, request: JoinRequest, ticket: RequestTicket, now_ms: int) -> ErrorCode:
        if request.instance_id is None and self.members.take_reserved_id(request.member_id):
            self._add(request, ticket, now_ms)
            return ErrorCode.NONE
        code = self.members.check_id(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return code
        member = self.members[request.member_id]
        leads = self.state is GroupState.STABLE and member.id == self.leader
        if self.state is GroupState.PREPARING or leads or member.join.protocols != request.protocols:
            self._due += member.fail_pending(ErrorCode.REBALANCE_IN_PROGRESS)
            # As in Kafka, a member keeps its instance id, even if a later request does not have it.
            member.join, member.joining = replace(request, instance_id=member.join.instance_id), ticket
            self._prepare(now_ms)
        else:
            # The member missed this generation's response, or a follower repeats its request. Nothing has changed.
            member.renew_session(now_ms)
            self._due.append(self._joined(member, ticket))
        return ErrorCode.NONE

    def _add(self, request: JoinRequest, ticket: RequestTicket, now_ms: int) -> None:
        self.members.add(
            MemberMetadata(id=request.member_id, join=request, deadline_ms=now_ms + request.session_ms, joining=ticket)
        )
        self._prepare(now_ms)

    def _replace_static(self, old: MemberMetadata, new: MemberMetadata, ticket: RequestTicket, now_ms: int) -> None:
        self._due += old.fail_pending(ErrorCode.FENCED_INSTANCE_ID)
        leader = self.leader or ""
        self.members.replace(old, new)
        if self.leader == old.id:
            self.leader = new.id
        unchanged = self.members.choose_protocol() == self.protocol and same_subscription(old.join, new.join)
        if self.state is GroupState.STABLE and unchanged:
            # The response names the old leader's id, so that no member acts as leader. A stable group needs no new
            # assignment.
            self._due.append(replace(self._joined(new, ticket), leader=leader, peers=()))
            self._save_stable()
            return
        new.joining = ticket
        self._prepare(now_ms)

    # Rebalance

    def _prepare(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            return
        if self.state is GroupState.EMPTY:
            self._earliest_ms = now_ms + self._initial_delay_ms
        self.state, self._sync_by_ms = GroupState.PREPARING, None
        self._join_by_ms = max(self._earliest_ms, now_ms + self.members.longest_rebalance_ms())
        for member in self.members:
            member.assignment, member.synced = b"", False
            if member.syncing is not None:
                self._due += member.fail_pending(ErrorCode.REBALANCE_IN_PROGRESS)
                member.renew_session(now_ms)

    def _maybe_complete(self, now_ms: int, *, ticks: bool = False) -> None:
        if self.state is not GroupState.PREPARING or now_ms < self._earliest_ms:
            return
        # Only `tick` ends the wait for the others, because after a pause of this process their requests may be unread.
        if self.members.everyone_joined() or (ticks and now_ms >= self._join_by_ms):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        for member in [each for each in self.members if each.joining is None and each.join.instance_id is None]:
            self.members.remove(member)
        # Static members that have not joined stay in the group. If there are no other members, wait for another
        # rebalance timeout.
        joined = [member for member in self.members if member.joining is not None]
        if self.members and not joined:
            self._join_by_ms = now_ms + self.members.longest_rebalance_ms()
            return
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader, self.stable = GroupState.EMPTY, None, None, None
            return
        self.state, self.protocol = GroupState.COMPLETING, self.members.choose_protocol()
        self._sync_by_ms = now_ms + self.members.longest_rebalance_ms()
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        for member in joined:
            self._due.append(self._joined(member, member.joining))
            member.joining = None
            member.renew_session(now_ms)

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.state = GroupState.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                self._due.append(SyncResponse(ticket=member.syncing, assignment=member.assignment))
                member.syncing = None
                member.renew_session(now_ms)
        self._save_stable()

    def _save_stable(self) -> None:
        self.stable = StableGroup(
            generation=self.generation,
            protocol=self.protocol or "",
            leader=self.leader or "",
            members=tuple((member.join, member.assignment) for member in self.members),
        )

    def _remove(self, members: list[MemberMetadata], now_ms: int) -> None:
        for member in members:
            self._due += member.fail_pending(ErrorCode.UNKNOWN_MEMBER_ID)
            self.members.remove(member)
        if members and self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(now_ms)
        self._maybe_complete(now_ms)

    # Responses

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        code = self.members.check_id(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def _joined(self, member: MemberMetadata, ticket: RequestTicket) -> JoinResponse:
        return JoinResponse(
            ticket=ticket,
            generation=self.generation,
            protocol=self.protocol or "",
            leader=self.leader or "",
            member_id=member.id,
            peers=self.members.peers(self.protocol) if member.id == self.leader else (),
        )

    def _responses(self) -> list[GroupResponse]:
        due, self._due = self._due, []
        return due
