"""Test that a router that takes over a partition knows what its predecessor knew.

The order in which it reads the topics must not matter.
"""

from dataclasses import replace

from schemas.base import Event
from schemas.ids import uuid7
from schemas.requests import Deadlines
from schemas.side_events import Account
from schemas.stream import Closed, Cutover
from services.bus import Received, partition_for
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.router.partition import Writes
from tests.support.bus import topic_of
from tests.unit.router.world import MS, RID, T0, about, chunk, failed, finished, request, started

CLOUD = RouterConfig(fallback="vertex", max_fallbacks=2, breaker_trip=1)
HERE = partition_for(RID, 1)


def router(config: RouterConfig) -> RouterCore:
    core = RouterCore(config, "router/late", 1)
    core.gained(HERE)
    return core


def read(core: RouterCore, *events: Event) -> Writes:
    """Let a router read events, each at the time at which it was written. Return what the router writes."""
    writes: Writes = []
    for event in events:
        record = Received(topic_of(event).name, HERE, 0, event.at // MS, event, None)
        writes += core.read(record, event.at, event.at)
    return writes


def test_attempt_whose_cutover_is_read_before_the_request_has_its_own_time() -> None:
    core = router(CLOUD)
    cutover = Cutover(**about(RID, 200), attempt=2, trigger="ttft")
    read(core, cutover, request(deadlines=Deadlines(ttft_ms=200)))
    kinds = [type(write.event) for write in core.caught_up(HERE, T0 + 399 * MS, T0 + 399 * MS)]
    assert Cutover not in kinds
    kinds = [type(write.event) for write in core.tick(HERE, T0 + 400 * MS, T0 + 400 * MS)]
    assert Cutover in kinds


def test_breaker_does_not_open_for_what_the_predecessor_has_counted() -> None:
    core = router(CLOUD)
    read(core, request(), started(), chunk(0, at_ms=900))
    core.caught_up(HERE, T0 + 1_000 * MS, T0 + 1_000 * MS)
    assert not core.breaker_open


def test_next_router_reads_from_the_request_even_if_it_was_read_second() -> None:
    core = router(replace(CLOUD, fallback="off"))
    other = uuid7(T0 // 1_000, 1)
    read(core, started(at_ms=90_000), request(at_ms=0, lane="batch", deadlines=Deadlines(total_ms=600_000)))
    read(core, request(other, at_ms=90_001), started(other, at_ms=90_002), chunk(0, other, at_ms=90_003))
    read(core, finished(0, other, at_ms=90_004))
    now_us = T0 + 90_100 * MS
    (closed,) = (write.event for write in core.caught_up(HERE, now_us, now_us) if isinstance(write.event, Closed))
    (account,) = (write.event for write in read(core, closed) if isinstance(write.event, Account))
    assert account.open_since is not None
    assert account.open_since <= T0


def test_partition_that_is_lost_and_gained_again_is_counted_once() -> None:
    core = router(replace(CLOUD, max_retries=1, prompt_chars=len("hello")))
    events = [request(), started(), failed(), Cutover(**about(RID, 70), attempt=2, trigger="hard_error")]
    events.append(Cutover(**about(RID, 80), attempt=3, trigger="ttft", target="generator"))
    for _ in range(2):
        read(core, *events)
        core.caught_up(HERE, T0 + 90 * MS, T0 + 90 * MS)
        shared = core._shared
        assert [budget._totals(T0)[0] for budget in (shared.budget, shared.retry_budget)] == [1, 1]
        assert core._partitions[HERE].requests[RID].prompt_kept
        core.lost(HERE)
        core.gained(HERE)


def test_share_of_the_budgets_follows_the_number_of_partitions() -> None:
    core = RouterCore(RouterConfig(), "router/late", 4)
    shared = core._shared
    core.gained(0)
    core.gained(1)
    assert (shared.budget.limits.free, shared.retry_budget.limits.free) == (10, 50)
    core.lost(1)
    assert (shared.budget.limits.free, shared.retry_budget.limits.free) == (5, 25)
