"""Test the router's budgets for fallbacks and for retries."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from schemas.requests import Lane
from schemas.side_events import Account
from schemas.topics import ACCOUNTS, STREAMS
from services.bus import Received, partition_for
from services.router.config import FallbackLimits, RouterConfig
from services.router.core import READ_TOPICS, RouterCore
from services.router.state.budget import WINDOW_S, FallbackBudget
from tests.unit.router.world import PARTITIONS, T0, World, failed, finished, request, request_id, started

S = 1_000_000


def test_fallbacks_stay_within_their_part_of_the_requests() -> None:
    tracker = FallbackBudget(FallbackLimits(ratio=0.1, free=0)).open()
    made = 0
    for number in range(1_000):
        now_us = number * 30_000
        tracker.add_request(now_us)
        if tracker.allows(0.0, now_us):
            tracker.spend(0.0, now_us)
            made += 1
    assert made == 100


def test_a_few_are_free_however_few_requests_there_are() -> None:
    tracker = FallbackBudget(FallbackLimits(ratio=0.0, free=2)).open()
    for _ in range(2):
        assert tracker.allows(0.0, 0)
        tracker.spend(0.0, 0)
    assert not tracker.allows(0.0, 0)
    assert tracker.allows(0.0, WINDOW_S * S)


def test_what_is_on_its_way_counts_until_it_is_released() -> None:
    tracker = FallbackBudget(FallbackLimits(ratio=0.0, free=1)).open()
    tracker.reserve("a", 0.0)
    assert not tracker.allows(0.0, 0)
    tracker.release("a")
    assert tracker.allows(0.0, 0)


def test_money_is_counted_over_all_partitions_and_forgotten_with_one() -> None:
    budget = FallbackBudget(FallbackLimits(ratio=1.0, free=100, usd=1.0))
    here, there = budget.open(), budget.open()
    there.spend(0.8, 0)
    assert here.allows(0.2, 0)
    assert not here.allows(0.3, 0)
    there.correct(-0.5, 0)
    assert here.allows(0.3, 0)
    budget.close(there)
    assert here.allows(1.0, 0)


def test_what_is_used_is_the_larger_share_of_requests_and_of_money() -> None:
    budget = FallbackBudget(FallbackLimits(ratio=0.0, free=4, usd=1.0))
    tracker = budget.open()
    assert budget.used(0) == 0
    tracker.spend(0.1, 0)
    assert budget.used(0) == pytest.approx(0.25)
    tracker.spend(0.8, 0)
    assert budget.used(0) == pytest.approx(0.9)
    tracker.spend(0.1, 0)
    assert budget.used(0) == pytest.approx(1.0)
    assert not tracker.allows(0.01, 0)
    assert budget.used(WINDOW_S * S) == 0
    assert (
        FallbackBudget(FallbackLimits(ratio=0.0, free=0)).used(0) == 0
    )  # nothing may go to the cloud: nothing is spent


def test_a_budget_that_refuses_counts_as_spent_for_a_minute() -> None:
    budget = FallbackBudget(FallbackLimits(ratio=1.0, free=100, usd=1.0))
    tracker = budget.open()
    tracker.spend(0.9, 0)
    assert budget.used(0) == pytest.approx(0.9)
    assert not tracker.allows(0.2, 0)
    assert budget.used(59 * S) == 1
    assert budget.used(60 * S) == 0


def test_a_slot_that_becomes_free_for_a_moment_does_not_end_the_alert() -> None:
    budget = FallbackBudget(FallbackLimits(ratio=0.0, free=1))
    tracker = budget.open()
    tracker.spend(0.0, 0)
    assert not tracker.allows(0.0, 59 * S)
    assert budget.used(61 * S) == 1


def test_totals_follow_every_change_within_one_second() -> None:
    tracker = FallbackBudget(FallbackLimits()).open()
    tracker.add_request(0)
    assert tracker.totals(0) == (1, 0, 0.0)
    tracker.spend(0.5, 0)
    tracker.reserve("a", 0.25)
    assert tracker.totals(0) == (1, 2, 0.75)
    tracker.correct(-0.25, 0)
    tracker.release("a")
    assert tracker.totals(0) == (1, 1, 0.25)
    assert tracker.totals(WINDOW_S * S) == (0, 0, 0.0)


def test_a_fallback_is_corrected_to_its_price_once() -> None:
    config = RouterConfig(fallback="vertex", limits=FallbackLimits(usd=1.0))
    world = World(config).put(request(), started(), failed(), started(attempt=2, run="r2", at_ms=70))
    end = finished(9, attempt=2, run="r2")
    world.put(end, end)
    spent_usd = sum(each._budgets.cloud.totals(end.at)[2] for each in world.routers[0]._partitions.values())
    assert spent_usd == pytest.approx(config.prices.of(end.usage))


def test_routers_share_the_free_ones_and_the_money_by_their_partitions() -> None:
    assert FallbackLimits(ratio=0.5, free=10, usd=2.0).share(0.25) == FallbackLimits(ratio=0.5, free=3, usd=0.5)
    assert FallbackLimits(free=0).share(0.5).free == 0


def test_long_log_keeps_the_newest_minute_only() -> None:
    tracker = FallbackBudget(FallbackLimits()).open()
    for second in range(100_000):
        tracker.add_request(second * S)
    assert len(tracker._seconds) <= 5 * WINDOW_S
    assert tracker.totals(99_999 * S)[0] == WINDOW_S


@pytest.mark.parametrize(
    "policy",
    [
        RouterConfig(fallback="vertex", limits=FallbackLimits(ratio=0.0, free=1)),
        RouterConfig(fallback="vertex", limits=FallbackLimits(usd=RouterConfig().prices.estimate(5, 512))),
        RouterConfig(max_retries=1, retry_limits=FallbackLimits(ratio=0.0, free=1)),
    ],
)
def test_requests_that_are_late_together_share_what_is_left_of_a_budget(policy: RouterConfig) -> None:
    world = World(policy)
    for number in range(4):
        world.put(request(request_id(number), at_ms=0), started(request_id(number), at_ms=0))
    world.until(5_000)
    assert sum(len(world.cutovers(request_id(number))) for number in range(4)) == 1


def test_router_that_folds_topics_in_any_order_counts_alike() -> None:
    """Routers that read the topics in different orders count the same requests, attempts in the cloud and costs.

    In some orders, the account of a request is read before its ``Request`` and its ``Cutover``.
    """
    policy = replace(RouterConfig(), fallback="vertex", limits=FallbackLimits(ratio=0.5, free=0))
    world = World(policy)
    for number in range(40):
        rid = request_id(number)
        world.put(request(rid), started(rid), failed(rid))
        world.put(started(rid, attempt=2, run="r2"), finished(-1, rid, attempt=2, run="r2"))
    made = len(world.cloud_requests())
    assert made == 20
    usd = sum(account.cost_usd for account in world.written(Account))
    assert usd > 0
    for router in late_routers(world):
        totals = [partition._budgets.cloud.totals(T0) for partition in router._partitions.values()]
        assert (sum(t[0] for t in totals), sum(t[1] for t in totals)) == (40, made)
        assert sum(t[2] for t in totals) == pytest.approx(usd)


@pytest.mark.parametrize(("lane", "counted"), [("interactive", 10), ("batch", 0)])
def test_router_that_folds_topics_in_any_order_counts_no_batch_retry(lane: Lane, counted: int) -> None:
    world = World(replace(RouterConfig(), max_retries=1, max_batch_retries=1))
    for number in range(10):
        rid = request_id(number)
        world.put(request(rid, lane=lane), started(rid), failed(rid, error_class="engine_dead"))
        world.put(started(rid, attempt=2, run="r2"), finished(-1, rid, attempt=2, run="r2"))
    assert sum(account.retries for account in world.written(Account)) == 10
    for router in (*world.routers, *late_routers(world)):
        totals = [partition._budgets.retries.totals(T0) for partition in router._partitions.values()]
        assert [sum(t[0] for t in totals), sum(t[1] for t in totals)] == [counted, counted]


def test_router_that_folds_topics_in_any_order_has_the_estimated_price() -> None:
    world = World(replace(RouterConfig(), fallback="vertex"))
    world.put(request(), started(), failed())
    assert len(world.cloud_requests()) == 1
    usd = sum(partition._budgets.cloud.totals(T0)[2] for partition in world.routers[0]._partitions.values())
    assert usd > 0
    for router in late_routers(world):
        totals = [partition._budgets.cloud.totals(T0) for partition in router._partitions.values()]
        assert (sum(t[1] for t in totals), sum(t[2] for t in totals)) == (1, pytest.approx(usd))


def late_routers(world: World) -> Iterator[RouterCore]:
    """Yield routers that have read the whole log, one topic after another, each router in a different order."""
    for order in (READ_TOPICS, READ_TOPICS[::-1], (STREAMS, *READ_TOPICS), (STREAMS, ACCOUNTS, *READ_TOPICS)):
        router = RouterCore(world.config, "router/late", PARTITIONS)
        for number in range(PARTITIONS):
            router.gained(number)
        for topic in dict.fromkeys(order):
            for offset, (where, event) in enumerate(world.log):
                if where is topic:
                    partition = partition_for(event.request_id, PARTITIONS)  # type: ignore[union-attr]
                    record = Received(topic.name, partition, offset, 0, event, None)
                    router.read(record, event.at, world.now_us)  # type: ignore[union-attr]
        for number in range(PARTITIONS):
            router.caught_up(number, world.now_us, world.now_us)
        yield router
