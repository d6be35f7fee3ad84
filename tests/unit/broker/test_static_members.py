"""Test static members: they return without a rebalance, and only one member at a time may use an instance id."""

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from services.broker.groups.members import (
    GroupState,
)
from services.broker.protocol.error_codes import ErrorCode
from tests.unit.broker.group_lab import SESSION_MS, Lab


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


def test_a_static_member_that_rejoins_without_its_instance_id_keeps_it():
    lab = Lab()
    (member,) = lab.stable("one")
    again = lab.joined(lab.join(member.member_id))
    assert lab.beat(again, "one") is ErrorCode.NONE
    assert lab.leave(member.member_id) is ErrorCode.NONE
    assert lab.joined(lab.join(instance="one")).code is ErrorCode.NONE


def test_a_reserved_member_id_does_not_take_the_place_of_a_static_member():
    lab = Lab()
    (member,) = lab.stable("one")
    reserved = lab.joined(lab.join(id_required=True)).member_id
    assert lab.joined(lab.join(reserved, instance="one")).code is ErrorCode.FENCED_INSTANCE_ID
    assert lab.beat(member, "one") is ErrorCode.NONE
    lab.wait(SESSION_MS)
    assert lab.group.idle


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
