"""Test that a ``Closed`` is void if events before it on the log contradict it.

The router then decides again at once.
"""

import pytest

from schemas.errors import NewerVersion
from schemas.stream import Closed, Verdict
from schemas.topics import REQUESTS, STREAMS
from schemas.wire import AnyEvent
from services.bus import Received, UnreadableRecord, partition_for
from services.router.config import FallbackLimits, RouterConfig
from services.router.decide.effects import Write
from tests.unit.router.world import (
    MS,
    PARTITIONS,
    RID,
    T0,
    World,
    attached,
    chunk,
    detached,
    finished,
    recall,
    request,
    request_id,
    started,
    tick,
    topic_of,
    verdict,
)

HERE = partition_for(RID, PARTITIONS)


HOLD = RouterConfig(input_gate="hold")
OVERTAKEN = [
    # configuration, time of the decision, events before it, events that overtake it, outcomes
    pytest.param(
        HOLD, 1_000, [request(), started(input_gate="hold")],
        [verdict(at_ms=999), chunk(0, at_ms=999), finished(0, at_ms=999)], ["failed", "completed"], id="no_verdict",
    ),
    pytest.param(
        RouterConfig(), 60_000, [request(), started()], [chunk(0, at_ms=59_999), finished(0, at_ms=59_999)],
        ["expired", "completed"], id="deadline",
    ),
    pytest.param(
        RouterConfig(client_grace_ms=500), 600, [request(), attached(), started(), chunk(0), detached(at_ms=100)],
        [recall(at_ms=599)], ["cancelled", "recalled"], id="client_gone",
    ),
    pytest.param(
        RouterConfig(), 90, [request(), started(), chunk(0)], [recall(at_ms=89)], ["completed", "recalled"],
        id="answered",
    ),
    pytest.param(
        RouterConfig(), 70, [request(), started(), chunk(0), recall()], [verdict("deny", at_ms=69)],
        ["recalled", "denied"],
        id="recalled",
    ),
    pytest.param(
        RouterConfig(fallback="vertex", limits=FallbackLimits(ratio=0, free=0), when_spent="close"), 200,
        [request(), started()], [chunk(0, at_ms=199), finished(0, at_ms=199)], ["failed", "completed"],
        id="no_first_token",
    ),
    pytest.param(
        RouterConfig(fallback="vertex", limits=FallbackLimits(ratio=0, free=0), when_spent="close"), 2_050,
        [request(), started(), chunk(0)], [chunk(1, at_ms=2_049), finished(1, at_ms=2_049)], ["failed", "completed"],
        id="stalled",
    ),
    pytest.param(
        RouterConfig(), 2_050, [request(), started(), chunk(0)],
        [chunk(1, at_ms=2_049), finished(1, at_ms=2_049)], ["failed", "completed"], id="stalled",
    ),
]  # fmt: skip
_LAST = {"answered": finished(0), "recalled": recall()}


@pytest.mark.parametrize(("policy", "at_ms", "before", "meanwhile", "endings"), OVERTAKEN)
def test_overtaken_closed_is_void_and_the_router_decides_again_at_once(
    policy: RouterConfig, at_ms: int, before: list[AnyEvent], meanwhile: list[AnyEvent], endings: list[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    cause = request.node.callspec.id.rstrip("01")
    world, late = overtaken(policy, at_ms, before, cause)
    for event in meanwhile:
        world.append(topic_of(event), event)
    assert world.endings() == []
    world.write(late)
    assert world.endings() == endings
    assert world.written(Closed)[0].cause == cause
    assert world.until(at_ms + 1_500).account().outcome == endings[-1]
    assert world.routers[0].open == 0


def overtaken(policy: RouterConfig, at_ms: int, before: list[AnyEvent], cause: str) -> tuple[World, list[Write]]:
    """Let the only router of a world decide to close a request.

    Return the world, and the router's ``Closed``, which is not on the log yet.

    Args:
        policy: The configuration of the router.
        at_ms: When the router decides, in milliseconds after the request.
        before: The events on the log before the decision.
        cause: The expected cause of the ``Closed``.
    """
    world = World(policy).put(*before[:-1] if cause == "recalled" else before).until(at_ms - 1)
    world.now_us = T0 + at_ms * MS
    (router,) = world.routers
    if cause in _LAST:
        item = Received(STREAMS.name, partition_for(RID, PARTITIONS), 99, 0, _LAST[cause], None)
        world.log.append((STREAMS, _LAST[cause]))
        late = router.read(item, world.now_us, world.now_us)
    else:
        late = tick(router, world.now_us)
    return world, [write for write in late if write.topic is STREAMS]


@pytest.mark.parametrize("word", [started(), verdict("deny")])
def test_overtaken_rejection_is_void_only_where_another_end_can_come(word: AnyEvent) -> None:
    """The rejection of an unreadable request is void if a ``Started`` or a denial is before it on the log.

    The router rejects a request that only a newer version of Railbus can read. Workers or rails of the newer version
    may already have read it. If they have written a ``Started``, an answer can still come. If they have denied the
    request, the router closes it as denied.
    """
    world = World()
    unread = UnreadableRecord(REQUESTS.name, HERE, 7, 0, RID.encode(), b"{", (), NewerVersion("v2"))
    (late, letter) = world.routers[0].read(unread, world.now_us, world.now_us)
    world.append(STREAMS, word)
    world.write([late, letter])
    expected = "denied" if isinstance(word, Verdict) else "expired"
    assert world.until(120_000).endings() == ["rejected", expected]
    assert world.account().outcome == expected


def test_overtaken_rejection_holds_if_no_other_end_can_come() -> None:
    world = World()
    unread = UnreadableRecord(REQUESTS.name, HERE, 7, 0, RID.encode(), b"{", (), NewerVersion("v2"))
    (late, letter) = world.routers[0].read(unread, world.now_us, world.now_us)
    world.append(STREAMS, verdict("allow"))
    world.write([late, letter])
    assert world.until(120_000).endings() == ["rejected"]
    assert world.account().outcome == "rejected"


def test_limit_of_open_requests_holds_even_if_another_event_is_read_first():
    ids = [rid for n in range(60) if partition_for(rid := request_id(n), PARTITIONS) == 0][:6]
    world = World(RouterConfig(max_open=2))
    for rid in ids:
        world.put(attached(rid=rid), request(rid))
    assert [world.endings(rid) for rid in ids] == [[], [], ["failed"], ["failed"], ["failed"], ["failed"]]
    assert world.account(ids[5]).cause == "too_many_open"
