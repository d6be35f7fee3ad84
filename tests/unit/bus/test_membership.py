"""Test how a group member handles errors, when it may commit, and when no other member can have its partitions."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import CommitFailedError, GroupAuthorizationFailedError, NodeNotReadyError
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3
from aiokafka.protocol.group import JoinGroupRequest, JoinGroupResponse_v5, SyncGroupRequest, SyncGroupResponse_v3
from aiokafka.structs import OffsetAndMetadata

from services.bus.groups.membership import NO_GENERATION, GroupMembership, MemberGeneration, _Coordinator

LOADING, NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, NOT_ALLOWED = 14, 16, 22, 25, 30


def _answer(error: int) -> OffsetFetchResponse_v3:
    topics = [] if error else [("topic", [(0, 5, "", 0)])]
    return OffsetFetchResponse_v3(0, topics, error)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a group member's ``_Coordinator`` that sends nothing.

    A test sets the attribute ``answers`` to the error codes of the next responses. The attribute ``lookups`` counts how
    often the member looked up which broker coordinates its group.
    """
    member: Any = object.__new__(_Coordinator)
    member.group_id, member._retry_backoff_ms, member.answers, member.lookups, member.known = "group", 1, [], 0, True

    async def send(self: Any, _request: Any) -> OffsetFetchResponse_v3:
        return _answer(self.answers.pop(0))

    async def look_up(self: Any) -> None:
        self.lookups += not self.known
        self.known = True

    monkeypatch.setattr(GroupCoordinator, "_send_req", send)
    monkeypatch.setattr(GroupCoordinator, "ensure_coordinator_known", look_up)
    monkeypatch.setattr(GroupCoordinator, "coordinator_dead", lambda self: setattr(self, "known", False))
    return member


@pytest.mark.parametrize(("errors", "lookups"), [([], 0), ([LOADING, LOADING], 0), ([NOT_COORDINATOR, LOADING], 1)])
async def test_an_error_for_the_whole_group_is_asked_again(coordinator: Any, errors: list[int], lookups: int) -> None:
    coordinator.answers = [*errors, 0]

    found = await coordinator.fetch_committed_offsets([TopicPartition("topic", 0)])

    assert {partition.partition: at.offset for partition, at in found.items()} == {0: 5}
    assert coordinator.lookups == lookups
    assert coordinator.answers == []


async def test_what_asking_again_cannot_mend_is_raised(coordinator: Any) -> None:
    coordinator.answers = [NOT_ALLOWED]

    with pytest.raises(GroupAuthorizationFailedError):
        await coordinator.fetch_committed_offsets([TopicPartition("topic", 0)])


class Joining:
    """A group member in generation 2. The test answers each of its requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator: Any = object.__new__(_Coordinator)
        self.coordinator.group_id, self.coordinator.member_id, self.coordinator.generation = "group", "member", 2
        self.coordinator.coordinator_id, self.coordinator._commit_lock = 0, asyncio.Lock()
        self.coordinator.working_generation = MemberGeneration("member", 2)
        self.coordinator._rejoin_needed_fut = asyncio.get_running_loop().create_future()
        self.coordinator._retry_backoff_ms = 1
        self.subscription = SimpleNamespace(assignment=object())
        self.coordinator._subscription = SimpleNamespace(subscription=self.subscription)
        self.answers: list[asyncio.Future[Any]] = []

        async def send(_: Any, request: Any) -> Any:
            self.answers.append(asyncio.get_running_loop().create_future())
            return await self.answers[-1]

        monkeypatch.setattr(GroupCoordinator, "_send_req", send)

    async def commit(self) -> "asyncio.Task[None]":
        """Start a commit. Return its task as soon as the request is sent."""
        offsets = {TopicPartition("topic", 0): OffsetAndMetadata(5, "")}
        assignment = self.subscription.assignment
        committing = asyncio.create_task(self.coordinator.commit_offsets(assignment, offsets))
        await asyncio.sleep(0.01)
        return committing

    def refuse(self, number: int, error: int) -> None:
        self.answers[number].set_result(OffsetCommitResponse_v3(0, [("topic", [(0, error)])]))

    @property
    def is_member(self) -> bool:
        coordinator = self.coordinator
        return coordinator.member_id == "member" and not coordinator._rejoin_needed_fut.done()


@pytest.fixture
async def joining(monkeypatch: pytest.MonkeyPatch) -> Joining:
    return Joining(monkeypatch)


@pytest.mark.parametrize("error", [ILLEGAL_GENERATION, UNKNOWN_MEMBER])
async def test_a_commit_of_a_generation_that_is_over_expels_nobody(joining: Joining, error: int) -> None:
    committing = await joining.commit()
    joining.coordinator.generation = 3  # meanwhile, the member's join was answered
    joining.refuse(0, error)

    with pytest.raises(CommitFailedError):
        await committing
    assert joining.is_member
    assert joining.coordinator.generation == 3


@pytest.mark.parametrize("error", [ILLEGAL_GENERATION, UNKNOWN_MEMBER])
async def test_the_commit_of_a_member_that_the_group_has_removed_makes_it_join(joining: Joining, error: int) -> None:
    committing = await joining.commit()
    joining.refuse(0, error)

    with pytest.raises(CommitFailedError):
        await committing
    assert not joining.is_member
    assert joining.coordinator.generation == -1


async def test_a_commit_that_failed_is_not_tried_again_after_a_rebalance(joining: Joining) -> None:
    committing = await joining.commit()
    joining.coordinator.generation = 3
    joining.coordinator.working_generation = MemberGeneration("member", 3)
    joining.subscription.assignment = object()
    joining.answers[0].set_exception(NodeNotReadyError())

    with pytest.raises(CommitFailedError):
        await asyncio.wait_for(committing, timeout=1)
    assert len(joining.answers) == 1, "another member may have committed a later offset meanwhile"
    assert joining.is_member


async def test_a_commit_that_failed_is_tried_again_in_its_generation(joining: Joining) -> None:
    committing = await joining.commit()
    joining.answers[0].set_exception(NodeNotReadyError())
    await asyncio.sleep(0.05)
    assert len(joining.answers) == 2
    joining.answers[1].set_result(OffsetCommitResponse_v3(0, [("topic", [(0, 0)])]))
    await committing


async def test_it_commits_until_the_join_is_answered_and_again_once_assigned(joining: Joining) -> None:
    coordinator, seen = joining.coordinator, []
    joined = asyncio.create_task(coordinator._send_req(JoinGroupRequest("group", 1, 1, "member", None, "consumer", [])))
    await asyncio.sleep(0)
    seen.append((coordinator.rebalancing, coordinator.may_commit))
    joining.answers[0].set_result(JoinGroupResponse_v5(0, 0, 3, "range", "member", "member", []))
    await joined
    seen.append((coordinator.rebalancing, coordinator.may_commit))
    synced = asyncio.create_task(coordinator._send_req(SyncGroupRequest("group", 3, "member", None, [])))
    await asyncio.sleep(0)
    seen.append((coordinator.rebalancing, coordinator.may_commit))
    joining.answers[1].set_result(SyncGroupResponse_v3(0, 0, b""))
    await synced
    seen.append((coordinator.rebalancing, coordinator.may_commit))
    assert seen == [(True, True), (True, False), (True, False), (False, True)]


async def test_a_join_that_fails_is_no_rebalance_any_more(joining: Joining) -> None:
    joined = asyncio.create_task(
        joining.coordinator._send_req(JoinGroupRequest("group", 1, 1, "member", None, "consumer", []))
    )
    await asyncio.sleep(0)
    joining.answers[0].set_exception(GroupAuthorizationFailedError("group"))
    with pytest.raises(GroupAuthorizationFailedError):
        await joined
    assert not joining.coordinator.rebalancing


async def test_a_removed_member_commits_nothing_before_it_has_its_new_assignment(joining: Joining) -> None:
    coordinator = joining.coordinator
    committing = await joining.commit()  # asked for by the member that was removed
    joining.refuse(0, UNKNOWN_MEMBER)
    with pytest.raises(CommitFailedError):
        await committing
    coordinator.member_id, coordinator.generation = "another member", 3
    request = JoinGroupRequest("group", 1, 1, "another member", None, "consumer", [])
    again = asyncio.create_task(coordinator._send_req(request))
    await asyncio.sleep(0)
    assert coordinator.joining
    assert not again.done()
    assert not coordinator.may_commit
    with pytest.raises(CommitFailedError):
        await asyncio.wait_for(await joining.commit(), timeout=1)

    coordinator.working_generation = MemberGeneration("another member", 3)
    assert coordinator.may_commit
    again.cancel()


async def test_a_removed_member_is_in_session_again_with_its_new_assignment(joining: Joining) -> None:
    """A member that was removed from the group is not in session until it takes over its new assignment.

    While a member is in session, no other member can have its partitions. A removed member must not start work that it
    read under its old assignment, because other members may have taken this work over.
    """
    member: Any = object.__new__(GroupMembership)
    member._coordinator, member._session_s = joining.coordinator, 1.0
    joining.coordinator.contact_s = time.monotonic()
    joining.coordinator.working_generation = NO_GENERATION
    assert member.take_over(MemberGeneration("member", 2)), "nothing is known about who had the partitions before"
    assert member.in_session
    joining.coordinator.generation = 3
    assert member.in_session, "a rebalance alone takes nothing away"
    assert not member.take_over(MemberGeneration("member", 3))

    joining.coordinator.member_id, joining.coordinator.generation = "another member", 4
    joining.coordinator.joining = True
    assert not member.in_session
    assert member.take_over(MemberGeneration("another member", 4))
    assert member.in_session


async def test_a_member_paused_while_it_joins_is_not_in_session(joining: Joining) -> None:
    member: Any = object.__new__(GroupMembership)
    member._coordinator, member._session_s = joining.coordinator, 1.0
    join = JoinGroupRequest("group", 1, 1, "member", None, "consumer", [])
    sent = asyncio.create_task(joining.coordinator._send_req(join))
    await asyncio.sleep(0)
    assert member.in_session
    joining.coordinator.join_s -= 1.0  # the process is paused for the session timeout
    assert not member.in_session
    sent.cancel()
