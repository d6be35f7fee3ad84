"""Tests of a consumer group by example: rebalances, heartbeats, timeouts and commits."""

import pytest

from services.broker.groups.members import (
    AssignmentProtocol,
    GroupState,
    JoinResponse,
    SyncResponse,
)
from services.broker.protocol.error_codes import ErrorCode
from tests.unit.broker.group_lab import REBALANCE_MS, SESSION_MS, Lab


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


def test_joins_that_came_during_a_pause_count():
    lab = Lab()
    first, second = lab.stable(None, None)
    third = lab.join()
    lab.now += REBALANCE_MS  # without a tick: the process was paused
    tickets = [lab.join(first.member_id), lab.join(second.member_id), third]
    lab.wait(50)
    assert [lab.joined(each).code for each in tickets] == [ErrorCode.NONE] * 3
