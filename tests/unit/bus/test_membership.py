"""Committed offsets while the broker loads the group: asked for again, never taken for "nothing was committed"."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from services.bus.groups.membership import _Coordinator

LOADING, NOT_COORDINATOR, NOT_ALLOWED = 14, 16, 30


def _answer(error: int) -> OffsetFetchResponse_v3:
    topics = [] if error else [("topic", [(0, 5, "", 0)])]
    return OffsetFetchResponse_v3(0, topics, error)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that sends nothing: `answers` are what comes back, `lookups` counts how often it looked for its broker."""
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
