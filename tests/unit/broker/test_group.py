"""One rebalance after another, by example. Times in milliseconds, sessions of 10 s, rebalances of 30 s."""

import itertools

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from services.broker.groups.group import Group
from services.broker.groups.members import (
    AssignmentProtocol,
    GroupState,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from services.broker.protocol.error_codes import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000


class Lab:
    """A group and its clock; tickets are numbers, and what was answered to each is kept."""

    def __init__(self, initial_delay_ms: int = 0) -> None:
        self.group = Group("g", initial_delay_ms=initial_delay_ms)
        self.now = 1_000
        self.answers: dict[int, JoinResponse | SyncResponse] = {}
        self._tickets = itertools.count(1)
        self._ids = itertools.count(1)

    def _take(self, answers) -> None:
        for answer in answers:
            assert answer.ticket not in self.answers, "one answer per request"
            self.answers[answer.ticket] = answer

    def join(self, member_id="", *, instance=None, metadata=b"m", protocols=None, id_required=False, kind="consumer"):
        """Returns the ticket."""
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
        """A stable group of as many members (static ones where an instance is given); the first leads."""
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
    """The lab with the group as a broker finds it that was killed and started again."""
    after = Lab()
    after.now = 5
    after.group = Group.restored("g", lab.group.stable, after.now)
    after._ids = itertools.count(100)
    return after


def test_stable_group_continues_after_a_restart_without_a_rebalance():
    lab = Lab()
    members = lab.stable(None, "static")
    after = restarted(lab)
    assert after.group.stable == lab.group.stable
    assert [after.beat(*each) for each in zip(members, (None, "static"), strict=True)] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert after.commits(members[0]) is ErrorCode.NONE
    assert after.group.leader == lab.group.leader


def test_member_gone_before_a_restart_is_removed_when_its_session_ends():
    lab = Lab()
    stays, _ = lab.stable(None, None)
    after = restarted(lab)
    after.wait(SESSION_MS - 1)
    assert after.beat(stays) is ErrorCode.NONE
    after.wait(1)
    assert after.beat(stays) is ErrorCode.REBALANCE_IN_PROGRESS
    alone = after.joined(after.join(stays.member_id))
    assert [peer.member_id for peer in alone.peers] == [stays.member_id]


def test_static_members_have_their_assignment_at_once_after_a_restart():
    lab = Lab()
    lab.stable("one", "two")
    after = restarted(lab)
    for name in ("one", "two"):
        joined = after.joined(after.join(instance=name))
        old = next(join.member_id for join, _ in lab.group.stable.members if join.instance_id == name)
        assert after.answers[after.sync(joined, instance=name)].assignment == old.encode()
    assert after.group.stable != lab.group.stable, "their new ids are kept"


def test_the_last_stable_generation_of_a_group_is_stored():
    lab = Lab()
    assert lab.group.stable is None
    (member,) = lab.stable(None)
    kept = lab.group.stable
    lab.join()
    assert lab.group.stable is kept, "it rebalances"
    lab.wait(REBALANCE_MS + SESSION_MS)
    lab.wait(REBALANCE_MS + SESSION_MS)
    assert lab.group.state is GroupState.EMPTY
    assert lab.group.stable is None
    assert lab.beat(member) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("topics", "data", "state"),
    [("ab", b"", GroupState.STABLE), ("ba", b"more", GroupState.STABLE), ("abc", b"", GroupState.COMPLETING)],
)
def test_returning_static_member_with_new_topics_gets_a_new_assignment(topics, data, state):
    lab = Lab()
    joined = lab.joined(lab.join(instance="one", metadata=ConsumerProtocolMemberMetadata(0, ["a", "b"], b"").encode()))
    lab.sync(joined, {joined.member_id: b"all"}, instance="one")
    lab.join(instance="one", metadata=ConsumerProtocolMemberMetadata(0, [*topics], data).encode())
    assert lab.group.state is state


def test_a_single_member_leads_itself():
    lab = Lab()
    joined = lab.joined(lab.join())
    assert (joined.code, joined.generation, joined.protocol) == (ErrorCode.NONE, 1, "range")
    assert joined.leader == joined.member_id
    assert [peer.member_id for peer in joined.peers] == [joined.member_id]
    synced = lab.answers[lab.sync(joined, {joined.member_id: b"all"})]
    assert synced == SyncResponse(ticket=synced.ticket, assignment=b"all")
    assert lab.beat(joined) is ErrorCode.NONE


def test_a_client_that_knows_how_is_given_an_id_first():
    lab = Lab()
    promised = lab.joined(lab.join(id_required=True))
    assert promised.code is ErrorCode.MEMBER_ID_REQUIRED
    assert lab.group.state is GroupState.EMPTY
    joined = lab.joined(lab.join(promised.member_id, id_required=True))
    assert (joined.code, joined.member_id) == (ErrorCode.NONE, promised.member_id)


def test_an_id_that_is_not_used_is_forgotten_with_the_session():
    lab = Lab()
    promised = lab.joined(lab.join(id_required=True))
    lab.wait(SESSION_MS)
    assert lab.group.idle
    assert lab.joined(lab.join(promised.member_id, id_required=True)).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_come_within_the_first_delay_share_one_generation():
    lab = Lab(initial_delay_ms=50)
    first, second = lab.join(), lab.join()
    lab.wait(49)
    assert not lab.answers
    assert lab.group.next_deadline_ms() == 1_050
    lab.wait(1)
    assert lab.joined(first).generation == lab.joined(second).generation == 1
    assert len(lab.joined(first).peers) == 2
    assert lab.joined(second).peers == ()


def test_a_second_member_makes_the_first_rejoin():
    lab = Lab()
    (first,) = lab.stable(None)
    second = lab.join()
    assert second not in lab.answers
    assert lab.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = lab.join(first.member_id)
    assert lab.joined(again).generation == lab.joined(second).generation == 2


def test_a_member_that_does_not_rejoin_is_out_after_the_rebalance_timeout():
    lab = Lab()
    (first,) = lab.stable(None)
    second = lab.join()
    for _ in range(5):
        lab.wait(5_000)
        assert lab.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in lab.answers
    lab.wait(5_000)
    assert [peer.member_id for peer in lab.joined(second).peers] == [lab.joined(second).member_id]
    assert lab.beat(first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_removed_after_its_session_and_others_rebalance():
    lab = Lab()
    first, second = lab.stable(None, None)
    lab.wait(SESSION_MS - 1)
    assert lab.beat(first) is ErrorCode.NONE
    lab.wait(1)
    assert lab.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    again = lab.joined(lab.join(first.member_id))
    assert len(again.peers) == 1


def test_two_sessions_may_end_at_once():
    lab = Lab()
    lab.stable(None, None, None)
    lab.wait(SESSION_MS)
    assert lab.group.state is GroupState.EMPTY
    assert lab.group.idle


def test_a_member_that_leaves_makes_room_at_once():
    lab = Lab()
    first, second = lab.stable(None, None)
    assert lab.leave(second.member_id) is ErrorCode.NONE
    assert lab.leave(second.member_id) is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(lab.joined(lab.join(first.member_id)).peers) == 1


def test_the_last_one_out_leaves_the_group_empty():
    lab = Lab()
    (only,) = lab.stable(None)
    lab.leave(only.member_id)
    assert (lab.group.state, lab.group.idle, lab.group.next_deadline_ms()) == (GroupState.EMPTY, True, None)


def test_a_follower_waits_for_the_leaders_plan():
    lab = Lab(initial_delay_ms=1)
    tickets = [lab.join(), lab.join()]
    lab.wait(1)
    leader, follower = (lab.joined(ticket) for ticket in tickets)
    waiting = lab.sync(follower)
    assert waiting not in lab.answers
    lab.sync(leader, {follower.member_id: b"half"})
    assert lab.answers[waiting] == SyncResponse(ticket=waiting, assignment=b"half")


def test_leader_without_a_plan_is_removed_after_the_rebalance_timeout():
    lab = Lab(initial_delay_ms=1)
    tickets = [lab.join(), lab.join()]
    lab.wait(1)
    leader, follower = (lab.joined(ticket) for ticket in tickets)
    waiting = lab.sync(follower)
    for _ in range(6):
        lab.beat(leader)
        lab.wait(5_000)
    assert lab.answers[waiting] == SyncResponse(ticket=waiting, code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert lab.beat(leader) is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.joined(lab.join(follower.member_id)).leader == follower.member_id


def test_member_that_does_not_fetch_its_assignment_is_removed():
    lab = Lab()
    members = lab.stable(None, None)
    leader = next(member for member in members if member.leader == member.member_id)
    follower = next(member for member in members if member is not leader)
    again = [lab.join(leader.member_id), lab.join(follower.member_id)]
    lab.sync(lab.joined(again[0]), {})
    for _ in range(6):
        assert lab.beat(lab.joined(again[1])) is ErrorCode.NONE
        lab.beat(lab.joined(again[0]))
        lab.wait(5_000)
    assert lab.beat(lab.joined(again[1])) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_asks_again_is_told_the_same_generation():
    lab = Lab()
    members = lab.stable(None, None)
    follower = next(member for member in members if member.leader != member.member_id)
    again = lab.joined(lab.join(follower.member_id))
    assert (again.generation, again.peers, lab.group.state) == (follower.generation, (), GroupState.STABLE)


def test_a_leader_that_rejoins_or_a_changed_subscription_rebalances():
    lab = Lab()
    members = lab.stable(None, None)
    leader = next(member for member in members if member.leader == member.member_id)
    follower = next(member for member in members if member is not leader)
    lab.join(leader.member_id)
    assert lab.group.state is GroupState.PREPARING
    lab.join(follower.member_id)
    assert lab.group.generation == leader.generation + 1

    other = Lab()
    members = other.stable(None, None)
    follower = next(member for member in members if member.leader != member.member_id)
    other.join(follower.member_id, metadata=b"another topic")
    assert other.group.state is GroupState.PREPARING


def test_old_generations_and_strangers_are_refused():
    lab = Lab()
    (first,) = lab.stable(None)
    stale = JoinResponse(ticket=0, generation=first.generation - 1, member_id=first.member_id)
    stranger = JoinResponse(ticket=0, generation=first.generation, member_id="nobody")
    assert lab.beat(stale) is ErrorCode.ILLEGAL_GENERATION
    assert lab.beat(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.answers[lab.sync(stale)].code is ErrorCode.ILLEGAL_GENERATION
    assert lab.answers[lab.sync(stranger)].code is ErrorCode.UNKNOWN_MEMBER_ID
    commit = lab.group.may_commit
    assert commit(first.member_id, None, first.generation, lab.now) is ErrorCode.NONE
    assert commit(first.member_id, None, first.generation - 1, lab.now) is ErrorCode.ILLEGAL_GENERATION
    assert commit("nobody", None, first.generation, lab.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", None, -1, lab.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_need_no_member_in_an_empty_group_and_wait_for_the_plan():
    lab = Lab()
    assert lab.group.may_commit("", None, -1, lab.now) is ErrorCode.NONE
    joined = lab.joined(lab.join())
    assert lab.group.may_commit(joined.member_id, None, 1, lab.now) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_the_session_alive():
    lab = Lab()
    (first,) = lab.stable(None)
    lab.wait(SESSION_MS - 1)
    lab.group.may_commit(first.member_id, None, first.generation, lab.now)
    lab.wait(SESSION_MS - 1)
    assert lab.beat(first) is ErrorCode.NONE


def test_the_protocol_is_one_that_all_share_and_most_like():
    lab = Lab(initial_delay_ms=1)
    a, b, c = AssignmentProtocol("a", b"1"), AssignmentProtocol("b", b"2"), AssignmentProtocol("c", b"3")
    tickets = [lab.join(protocols=offers) for offers in ([a, b, c], [c, b], [b, c])]
    lab.wait(1)
    assert lab.joined(tickets[0]).protocol == "b"
    assert {peer.metadata for peer in lab.joined(tickets[0]).peers} == {b"2"}


def test_a_member_with_nothing_in_common_is_refused():
    lab = Lab()
    lab.stable(None)
    assert (
        lab.joined(lab.join(protocols=[AssignmentProtocol("other", b"")])).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert lab.joined(lab.join(kind="connect")).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.group.state is GroupState.STABLE


# Static members


def test_a_static_member_comes_back_to_its_assignment_without_a_rebalance():
    lab = Lab()
    members = lab.stable("one", "two")
    for old, instance in zip(members, ("one", "two"), strict=True):
        back = lab.joined(lab.join(instance=instance))
        assert back.code is ErrorCode.NONE
        assert back.member_id != old.member_id
        assert (back.generation, back.peers) == (old.generation, ())
        assert back.leader != back.member_id, "nobody is to make a new plan"
        assert lab.answers[lab.sync(back, instance=instance)].assignment == old.member_id.encode()
        assert lab.group.state is GroupState.STABLE
        assert lab.beat(old, instance) is ErrorCode.FENCED_INSTANCE_ID
        assert lab.beat(old) is ErrorCode.UNKNOWN_MEMBER_ID
        assert lab.answers[lab.sync(old, instance=instance)].code is ErrorCode.FENCED_INSTANCE_ID
        assert lab.group.may_commit(old.member_id, instance, old.generation, lab.now) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_out_after_its_session():
    lab = Lab()
    _, second = lab.stable("one", "two")
    lab.wait(SESSION_MS - 1)
    lab.beat(second, "two")
    lab.wait(1)
    assert lab.beat(second, "two") is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(lab.joined(lab.join(second.member_id, instance="two")).peers) == 1


def test_a_twin_that_waits_to_join_is_fenced():
    lab = Lab()
    lab.stable(None)
    first = lab.join(instance="twin")
    second = lab.join(instance="twin")
    assert lab.joined(first).code is ErrorCode.FENCED_INSTANCE_ID
    assert second not in lab.answers


def test_a_twin_during_the_plan_starts_another_rebalance():
    lab = Lab(initial_delay_ms=1)
    tickets = [lab.join(instance="one"), lab.join(instance="two")]
    lab.wait(1)
    _, second = (lab.joined(ticket) for ticket in tickets)
    waiting = lab.sync(second, instance="two")
    lab.join(instance="two")
    assert lab.answers[waiting].code is ErrorCode.FENCED_INSTANCE_ID
    assert lab.group.state is GroupState.PREPARING


def test_a_static_member_may_leave_by_its_instance():
    lab = Lab()
    lab.stable("one")
    assert lab.leave("", "other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.leave("", "one") is ErrorCode.NONE
    assert lab.group.idle


@pytest.mark.parametrize("state", ["promised", "joining", "syncing", "stable"])
def test_there_is_always_a_next_deadline_while_somebody_is_there(state):
    lab = Lab(initial_delay_ms=1)
    if state == "promised":
        lab.join(id_required=True)
    else:
        ticket = lab.join()
        if state != "joining":
            lab.wait(1)
            joined = lab.joined(ticket)
            if state == "stable":
                lab.sync(joined)
    assert lab.group.next_deadline_ms() is not None
