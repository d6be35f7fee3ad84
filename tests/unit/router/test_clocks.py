"""Test that the clock of an edge does not affect deadlines, and the clock of a router does not affect the ledger."""

from dataclasses import replace

import pytest
from msgspec import structs

from schemas.requests import MAX_WAITED_MS, Deadlines, received_us
from schemas.stream import Closed, Cutover
from schemas.topics import REQUESTS, STREAMS
from services.books import BooksConfig, PartitionBooks
from services.bus import Received, partition_for
from services.router.config import FallbackLimits, RouterConfig
from tests.unit.router.world import MS, PARTITIONS, RID, T0, World, chunk, finished, request, started

CLOUD = RouterConfig(fallback="vertex", limits=FallbackLimits(free=100), breaker_trip=5)


@pytest.mark.parametrize("off_ms", [-61_000, -250, 61_000])
def test_the_time_of_day_of_an_edge_moves_no_deadline(off_ms: int) -> None:
    world = World(CLOUD)
    world.append(REQUESTS, structs.replace(request(), at=T0 + off_ms * MS))
    world.until(199)
    assert world.cutovers() == []
    assert world.endings() == []
    world.until(201)
    assert world.cutovers() == [(2, "ttft", "cancel", "vertex")]


def test_edges_that_are_behind_do_not_open_the_breaker() -> None:
    world = World(CLOUD)
    for number in range(12):
        asked = request(f"{RID[:-2]}{number:02x}", at_ms=-61_000)
        world.append(REQUESTS, asked)
        world.append(STREAMS, started(asked.request_id))
        world.append(STREAMS, chunk(0, asked.request_id))
    assert world.written(Cutover) == []
    assert world.written(Closed) == []


def test_the_time_that_a_request_waited_at_its_edge_counts() -> None:
    world = World(CLOUD)
    world.append(REQUESTS, request(waited_ms=150.0))
    world.until(49)
    assert world.cutovers() == []
    world.until(51)
    assert len(world.cutovers()) == 1


def test_what_a_request_claims_is_bounded() -> None:
    assert received_us(request(waited_ms=86_400_000.0), T0) == T0 - MAX_WAITED_MS * MS
    assert received_us(request(waited_ms=0.0), T0) == T0
    world = World(RouterConfig())
    world.append(REQUESTS, request(waited_ms=86_400_000.0, deadlines=Deadlines(total_ms=60_000)))
    world.until(49_000)
    assert world.endings() == []
    world.until(51_000)
    assert world.endings() == ["expired"]


def test_another_attempt_goes_on_with_the_total_deadline() -> None:
    world = World(CLOUD)
    world.append(REQUESTS, request(waited_ms=40.0))
    world.until(170)
    (again,) = world.cloud_requests()
    assert received_us(again, T0 + 160 * MS) == T0 - 40 * MS


def test_another_attempt_of_a_request_of_an_older_writer_too() -> None:
    world = World(CLOUD)
    world.append(REQUESTS, structs.replace(request(), at=T0 + 61_000 * MS))
    world.until(210)
    (again,) = world.cloud_requests()
    assert received_us(again, T0 + 200 * MS) == T0


def test_started_stands_in_until_the_request_is_read() -> None:
    world = World(CLOUD)
    world.append(STREAMS, started(queue_ms=9_000_000.0 / 1_000, deadlines=Deadlines(total_ms=9_500)))
    world.append(REQUESTS, request(deadlines=Deadlines(total_ms=9_500)))
    world.append(STREAMS, chunk(0))
    world.until(1_000)
    assert world.endings() == []


def test_a_worker_claims_no_more_than_a_request_may() -> None:
    world = World(RouterConfig())
    world.append(STREAMS, started(queue_ms=61_000.0))
    world.until(49_000)
    assert world.endings() == []


def test_a_cutover_that_is_read_before_its_request_keeps_its_time() -> None:
    """The first-token deadline of attempt 2 counts from its cutover, even if the cutover is read before the request.

    Routers read the topics in parallel, so a new router may read the two events in this order.
    """
    config = replace(CLOUD, max_fallbacks=2)
    world = World(config)
    world.append(REQUESTS, request())
    world.until(201)
    cutover = next(event for topic, event in world.log if topic is STREAMS)
    late = World(config)
    late.now_us = T0 + 210 * MS
    for offset, (topic, event, at_ms) in enumerate([(STREAMS, cutover, 200), (REQUESTS, request(), 0)]):
        late.log.append((topic, event))
        number = partition_for(RID, PARTITIONS)
        record = Received(topic.name, number, offset, T0 // 1_000 + at_ms, event, None)
        late.write(late.routers[0].read(record, T0 + at_ms * MS, late.now_us))
    late.until(399)
    assert len(late.cutovers()) == 1
    late.until(401)
    assert len(late.cutovers()) == 2


@pytest.mark.parametrize("ahead_s", [-86_400, -2, 0, 2, 86_400])
def test_the_ledger_counts_a_request_whatever_its_routers_clock_says(ahead_s: int) -> None:
    world = World()
    world.broker_ahead_us = -ahead_s * 1_000_000
    account = world.put(request(), started(), chunk(0), finished(0)).account()
    assert account.closed_at == world.now_us + world.broker_ahead_us
    assert account.closed_at - account.received_at == 90 * MS
    books = PartitionBooks(0, BooksConfig())
    books.take(account, account.closed_at // 1_000)
    (window,) = books.all_windows()
    assert (window.requests, books.late) == (1, 0)
    assert window.start_at <= account.closed_at < window.end_at
