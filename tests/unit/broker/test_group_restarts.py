"""Test, with examples, what a broker knows about a consumer group after the broker was killed and started again."""

from services.broker.groups.members import (
    GroupState,
)
from services.broker.protocol.error_codes import ErrorCode
from tests.unit.broker.group_lab import REBALANCE_MS, SESSION_MS, Lab, restarted


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
