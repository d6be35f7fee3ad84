"""Run a consumer group of the embedded broker with a simulated clock. All times are in milliseconds.

The session timeout is 10 s, and the rebalance timeout is 30 s.
"""

import itertools

from services.broker.groups.group import ConsumerGroup
from services.broker.groups.members import (
    AssignmentProtocol,
    GroupState,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)

SESSION_MS = 10_000
REBALANCE_MS = 30_000


class Lab:
    """A consumer group and its clock. Each request has a number, its ticket. `answers` has the responses by ticket."""

    def __init__(self, initial_delay_ms: int = 0) -> None:
        self.group = ConsumerGroup("g", initial_delay_ms=initial_delay_ms)
        self.now = 1_000
        self.answers: dict[int, JoinResponse | SyncResponse] = {}
        self._tickets = itertools.count(1)
        self._ids = itertools.count(1)

    def _take(self, answers) -> None:
        for answer in answers:
            assert answer.ticket not in self.answers, "one answer per request"
            self.answers[answer.ticket] = answer

    def join(self, member_id="", *, instance=None, metadata=b"m", protocols=None, id_required=False, kind="consumer"):
        """Send a JoinGroup request. Return its ticket: the key of the response in `answers`."""
        ticket = next(self._tickets)
        asked = JoinRequest(
            member_id=member_id,
            instance_id=instance,
            client_id="c",
            client_host="h",
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type=kind,
            protocols=tuple(protocols or [AssignmentProtocol("range", metadata)]),
            id_required=id_required,
        )
        self._take(self.group.join(asked, ticket, f"m{next(self._ids)}", self.now))
        return ticket

    def sync(self, joined: JoinResponse, assignments=None, instance=None):
        ticket = next(self._tickets)
        asked = SyncRequest(
            member_id=joined.member_id,
            instance_id=instance,
            generation=joined.generation,
            assignments=assignments or {},
        )
        self._take(self.group.sync(asked, ticket, self.now))
        return ticket

    def leave(self, member_id, instance=None):
        code, answers = self.group.leave(member_id, instance, self.now)
        self._take(answers)
        return code

    def beat(self, joined: JoinResponse, instance=None):
        return self.group.heartbeat(joined.member_id, instance, joined.generation, self.now)

    def commits(self, joined: JoinResponse, instance=None):
        return self.group.may_commit(joined.member_id, instance, joined.generation, self.now)

    def wait(self, ms):
        self.now += ms
        self._take(self.group.tick(self.now))

    def joined(self, ticket) -> JoinResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinResponse)
        return answer

    def stable(self, *instances):
        """Let one member join for each entry of `instances`, and make the group stable. Return the join responses.

        A member is dynamic if its entry in `instances` is None. Otherwise, the entry is the instance id of a static
        member. The first member is the leader.
        """
        tickets = [self.join(instance=instance) for instance in instances]
        members = [self.joined(ticket) for ticket in tickets if ticket in self.answers]
        # Everyone who came later made the earlier ones rejoin.
        while len(members) < len(instances) or len({m.generation for m in members}) > 1:
            tickets = [
                ticket if ticket not in self.answers else self.join(self.joined(ticket).member_id, instance=instance)
                for ticket, instance in zip(tickets, instances, strict=True)
            ]
            members = [self.joined(ticket) for ticket in tickets if ticket in self.answers]
        leader = next(m for m in members if m.leader == m.member_id)
        plan = {m.member_id: m.member_id.encode() for m in members}
        for m, instance in zip(members, instances, strict=True):
            if m is not leader:
                self.sync(m, instance=instance)
        self.sync(leader, plan, instance=instances[members.index(leader)])
        assert self.group.state is GroupState.STABLE
        return members


def restarted(lab: Lab) -> Lab:
    """Return a new lab whose group is restored from the stored state of the old group, as after a broker restart."""
    after = Lab()
    after.now = 5
    after.group = ConsumerGroup.restored("g", lab.group.stable, after.now)
    after._ids = itertools.count(100)
    return after
