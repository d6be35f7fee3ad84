"""The budget by itself, and folded again."""

from dataclasses import replace

from services.bus import Received, partition_for
from services.router.budget import WINDOW_S, Budget, Limits
from services.router.core import READ, Router
from services.router.policy import Policy
from tests.unit.router.world import PARTITIONS, T0, World, failed, finished, request, request_id, started

S = 1_000_000


def test_fallbacks_stay_within_their_part_of_the_requests() -> None:
    ledger = Budget(Limits(ratio=0.1, free=0)).open()
    made = 0
    for number in range(1_000):
        now_us = number * 30_000
        ledger.ask(now_us)
        if ledger.allows(0.0, now_us):
            ledger.spend(0.0, now_us)
            made += 1
    assert made == 100


def test_a_few_are_free_however_few_requests_there_are() -> None:
    ledger = Budget(Limits(ratio=0.0, free=2)).open()
    for _ in range(2):
        assert ledger.allows(0.0, 0)
        ledger.spend(0.0, 0)
    assert not ledger.allows(0.0, 0)
    assert ledger.allows(0.0, WINDOW_S * S)


def test_what_is_on_its_way_counts_until_it_is_released() -> None:
    ledger = Budget(Limits(ratio=0.0, free=1)).open()
    ledger.reserve("a", 0.0)
    assert not ledger.allows(0.0, 0)
    ledger.release("a")
    assert ledger.allows(0.0, 0)


def test_money_is_counted_over_all_shards_and_forgotten_with_a_shard() -> None:
    budget = Budget(Limits(ratio=1.0, free=100, usd=1.0))
    here, there = budget.open(), budget.open()
    there.spend(0.8, 0)
    assert here.allows(0.2, 0)
    assert not here.allows(0.3, 0)
    there.correct(-0.5, 0)
    assert here.allows(0.3, 0)
    budget.close(there)
    assert here.allows(1.0, 0)


def test_routers_share_the_free_ones_and_the_money_by_their_partitions() -> None:
    assert Limits(ratio=0.5, free=10, usd=2.0).share(0.25) == Limits(ratio=0.5, free=3, usd=0.5)
    assert Limits(free=0).share(0.5).free == 0


def test_long_log_keeps_the_newest_minute_only() -> None:
    ledger = Budget(Limits()).open()
    for second in range(100_000):
        ledger.ask(second * S)
    assert len(ledger._seconds) <= 5 * WINDOW_S
    assert ledger.totals(99_999 * S)[0] == WINDOW_S


def test_router_that_folds_topics_in_any_order_counts_alike() -> None:
    """An account read first ends its request's case before its question and its cutover are read."""
    policy = replace(Policy(), fallback="vertex", limits=Limits(ratio=0.5, free=0))
    world = World(policy)
    for number in range(40):
        rid = request_id(number)
        world.put(request(rid), started(rid), failed(rid))
        world.put(started(rid, attempt=2, run="r2"), finished(-1, rid, attempt=2, run="r2"))
    made = len(world.cloud_requests())
    assert made == 20
    for order in (READ, READ[::-1]):
        router = Router(policy, "router/late", PARTITIONS)
        for number in range(PARTITIONS):
            router.gained(number)
        for topic in order:
            for offset, (where, event) in enumerate(world.log):
                if where is topic:
                    partition = partition_for(event.request_id, PARTITIONS)  # type: ignore[union-attr]
                    record = Received(topic.name, partition, offset, 0, event, None)
                    router.read(record, event.at, world.now_us)  # type: ignore[union-attr]
        for number in range(PARTITIONS):
            router.caught_up(number, world.now_us, world.now_us)
        totals = [shard._ledger.totals(T0) for shard in router._shards.values()]
        assert (sum(t[0] for t in totals), sum(t[1] for t in totals)) == (40, made)
