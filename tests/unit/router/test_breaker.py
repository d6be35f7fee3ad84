"""Test the circuit breaker on its own, and its effect on requests."""

from typing import Any

from schemas.requests import Deadlines
from schemas.side_events import Account
from schemas.stream import Closed
from schemas.topics import STREAMS
from services.bus import partition_for
from services.router.config import FallbackLimits, RouterConfig
from services.router.state.breaker import MAX_OUTCOMES, OPEN_US, PROBES, STALE_US, Breaker
from tests.unit.router.world import (
    PARTITIONS,
    World,
    chunk,
    failed,
    finished,
    request,
    request_id,
    started,
    verdict,
)

TRIP = RouterConfig().breaker_trip


def tripped(now_us: int = 0) -> Breaker:
    breaker = Breaker(TRIP)
    for _ in range(TRIP):
        breaker.record(now_us, served=False)
    return breaker


def test_failures_among_the_newest_open_it() -> None:
    breaker = Breaker(TRIP)
    for _ in range(TRIP - 1):
        breaker.record(0, served=True)
        breaker.record(0, served=False)
    assert breaker.admits(0) == "yes"
    breaker.record(0, served=False)
    assert breaker.admits(0) == "no"


def test_few_failures_among_many_successes_do_not() -> None:
    breaker = Breaker(TRIP)
    for number in range(200):
        breaker.record(0, served=number % 3 != 0)
    assert breaker.admits(0) == "yes"


def test_breaker_that_is_off_never_opens() -> None:
    breaker = Breaker(0)
    for _ in range(2 * MAX_OUTCOMES):
        breaker.record(0, served=False)
    assert breaker.admits(0) == "yes"


def test_old_failures_do_not_count() -> None:
    breaker = Breaker(TRIP)
    for _ in range(TRIP - 1):
        breaker.record(0, served=False)
    breaker.record(STALE_US + 1, served=False)
    assert breaker.admits(STALE_US + 1) == "yes"


def test_after_its_rest_a_few_probe_and_close_it() -> None:
    breaker = tripped()
    assert breaker.admits(OPEN_US - 1) == "no"
    assert [breaker.admits(OPEN_US) for _ in range(PROBES + 1)] == ["probe"] * PROBES + ["no"]
    for _ in range(PROBES):
        breaker.record(OPEN_US, probe=True, served=True)
    assert breaker.admits(OPEN_US) == "yes"


def test_failed_probe_opens_it_again() -> None:
    breaker = tripped()
    assert breaker.admits(OPEN_US) == "probe"
    breaker.record(OPEN_US, probe=True, served=False)
    assert breaker.admits(2 * OPEN_US - 1) == "no"
    assert breaker.admits(2 * OPEN_US) == "probe"


def test_probes_before_it_opened_again_do_not_help_to_close_it() -> None:
    breaker = tripped()
    for served in (True, True, False):
        assert breaker.admits(OPEN_US) == "probe"
        breaker.record(OPEN_US, probe=True, served=served)
    for _ in range(PROBES):
        assert breaker.state != "closed"
        assert breaker.admits(2 * OPEN_US) == "probe"
        breaker.record(2 * OPEN_US, probe=True, served=True)
    assert breaker.state == "closed"


def test_failures_before_it_closed_do_not_open_it_again() -> None:
    breaker = tripped()
    for _ in range(PROBES):
        breaker.admits(OPEN_US)
    for _ in range(PROBES):
        breaker.record(OPEN_US, probe=True, served=True)
    breaker.record(OPEN_US, served=False)
    assert breaker.state == "closed"


def test_probes_that_are_never_recorded_are_followed_by_others() -> None:
    breaker = tripped()
    for _ in range(PROBES):
        breaker.admits(OPEN_US)
    assert breaker.admits(OPEN_US + 1) == "no"
    assert breaker.admits(2 * OPEN_US) == "probe"


def test_latecomers_from_before_it_opened_say_nothing() -> None:
    breaker = tripped()
    breaker.record(1, served=True)
    assert breaker.admits(OPEN_US) == "probe"
    breaker.record(OPEN_US + 1, served=False)
    assert breaker.state == "half_open"


def sick_world(**fields: Any) -> World:
    world = World(RouterConfig(fallback="vertex", **fields))
    for number in range(TRIP):
        rid = request_id(number)
        world.put(request(rid), failed(rid, at_ms=10))
    return world


def test_request_to_a_sick_path_goes_straight_to_the_cloud() -> None:
    world = sick_world()
    rid = request_id(100)
    world.put(request(rid, at_ms=20, fallback="race"))
    assert world.cutovers(rid) == [(2, "ttft", "cancel", "vertex")]
    assert world.written(type(world.cloud_requests(rid)[0]), rid)
    assert world.cloud_requests(rid)[0].attempt == 2


def test_second_cloud_attempt_waits_until_the_first_one_is_late() -> None:
    world = sick_world(max_fallbacks=2)
    rid = request_id(100)
    deadlines = Deadlines(ttft_ms=300)
    world.put(request(rid, at_ms=20, deadlines=deadlines, fallback="race")).until(310)
    assert world.cutovers(rid) == [(2, "ttft", "cancel", "vertex")]
    assert world.until(330).cutovers(rid)[1:] == [(3, "ttft", "race", "vertex")]


def test_without_a_budget_for_the_cloud_only_a_late_request_is_closed() -> None:
    world = sick_world(limits=FallbackLimits(ratio=0.0, free=TRIP), when_spent="close")
    served, late = request_id(100), request_id(101)
    world.put(request(served, at_ms=20, deadlines=Deadlines(ttft_ms=300)), started(served, at_ms=21))
    world.put(chunk(0, served, at_ms=100), finished(0, served, at_ms=101))
    assert world.endings(served) == ["completed"]
    world.put(request(late, at_ms=200, deadlines=Deadlines(ttft_ms=300))).until(499)
    assert world.endings(late) == []
    assert world.until(500).written(Closed, late)[0].cause == "no_first_token"


def test_path_recovers_by_itself_through_probes() -> None:
    world = sick_world()
    for number in range(PROBES):
        rid = request_id(200 + number)
        at_ms = 2_100
        world.put(request(rid, at_ms=at_ms), started(rid, at_ms=at_ms, received_at=0))
        assert world.cutovers(rid) == []
        world.put(chunk(0, rid, at_ms=at_ms + 10), finished(0, rid, at_ms=at_ms + 11))
    last = request_id(300)
    assert world.put(request(last, at_ms=2_300)).cutovers(last) == []
    assert world.routers[0]._shared.breaker.state == "closed"


def test_account_tells_the_state_of_the_breaker() -> None:
    world = World(RouterConfig(fallback="vertex", breaker_trip=1))
    good, bad = request_id(0), request_id(1)
    world.put(request(good), started(good), chunk(0, good), finished(0, good))
    world.put(request(bad, at_ms=100), started(bad, at_ms=101), failed(bad, at_ms=102, retryable=False))
    assert [account.breaker for account in world.until(2_000).written(Account)] == ["closed", "open"]


def test_late_first_tokens_open_it_as_well() -> None:
    world = World(RouterConfig(fallback="vertex"))
    world.put(*(request(request_id(number)) for number in range(TRIP))).until(200)
    assert world.routers[0]._shared.breaker.state == "open"


def test_late_first_token_that_is_read_before_the_clock_counts_as_late() -> None:
    """A first token that comes after its deadline counts as late in the circuit breaker, although no cutover follows.

    Here, the router reads the token before it checks the deadline, as it may after a pause.
    """
    world = World(RouterConfig(fallback="vertex", breaker_trip=1)).put(request(), started())
    world.now_us += 300_000
    world.append(STREAMS, chunk(0, at_ms=300))
    assert world.cutovers() == []
    assert world.routers[0].breaker_open


def test_prompts_at_fault_do_not_open_it() -> None:
    world = World(RouterConfig(fallback="vertex"))
    for number in range(2 * TRIP):
        rid = request_id(number)
        world.put(request(rid), failed(rid, error_class="bad_request", retryable=False))
    assert world.routers[0]._shared.breaker.state == "closed"


def test_denied_request_whose_worker_stops_late_does_not_open_it() -> None:
    world = World(RouterConfig(fallback="vertex", breaker_trip=1))
    world.put(request(), started(), verdict("deny", at_ms=190))
    world.put(failed(at_ms=210, error_class="cancelled", retryable=False)).until(3_000)
    assert world.endings() == ["denied"]
    assert not world.routers[0].breaker_open


def test_request_that_was_turned_away_does_not_open_it() -> None:
    first, second = [rid for n in range(40) if partition_for(rid := request_id(n), PARTITIONS) == 0][:2]
    world = World(RouterConfig(fallback="vertex", breaker_trip=1, max_open=1))
    world.put(request(first), started(first), chunk(0, first), started(second, at_ms=51), request(second, at_ms=52))
    assert world.until(1_900).account(second).cause == "too_many_open"
    assert not world.routers[0].breaker_open
