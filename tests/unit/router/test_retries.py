"""Test retries on the self-hosted engines: after a stall, a dead worker, or a first token that does not come."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.requests import Deadlines, Message, Request
from schemas.stream import Closed, Cutover, Failed
from schemas.topics import REQUESTS, REQUESTS_BATCH
from schemas.wire import decode, encode
from services.router.config import FallbackLimits, RouterConfig
from services.router.partition import Writes
from services.runtime.classes.policy_deadlines import WIDEST_BOUNDS
from services.runtime.classes.service_classes import ClassSpec, ServiceClasses
from tests.unit.router.world import (
    MS,
    RID,
    T0,
    World,
    chunk,
    failed,
    finished,
    next_alarm_us,
    request,
    request_id,
    started,
    verdict,
)

ALONE = RouterConfig(max_retries=1, max_batch_retries=1)
BOTH = RouterConfig(fallback="vertex", max_retries=1, max_batch_retries=1)
HELD = replace(BOTH, input_gate="hold")


def retried(world: World, rid: str = RID) -> list[Request]:
    """Return the ``Request`` events with which the router retried an interactive request."""
    events = [event for topic, event in world.log if topic is REQUESTS and isinstance(event, Request)]
    return [event for event in events if event.attempt > 1 and event.request_id == rid]


def dead(attempt: int = 1, run: str = "r1", at_ms: float = 60, **fields: Any) -> Failed:
    return failed(at_ms=at_ms, attempt=attempt, run=run, error_class="engine_dead", message="died", **fields)


def test_a_stall_is_retried_on_the_self_hosted_engines_at_its_deadline() -> None:
    world = World(ALONE).put(request(), started(), chunk(0))
    assert world.until(2_049).cutovers() == []
    assert world.until(2_050).cutovers() == [(2, "stall", "cancel", "generator")]
    (again,) = retried(world)
    assert (again.attempt, again.messages, again.at) == (2, request().messages, T0)
    assert world.cancels() == [("cutover", 1)]
    world.put(
        started(at_ms=2_100, attempt=2, run="r2"),
        chunk(0, at_ms=2_200, attempt=2, run="r2"),
        finished(0, at_ms=2_300, attempt=2, run="r2"),
    )
    assert world.endings() == ["completed"]
    account = world.until(4_000).account()
    assert [book.trigger for book in account.attempts] == [None, "stall"]
    assert account.cost_usd == 0


def test_a_stall_goes_to_self_hosted_engines_then_the_cloud_then_ends() -> None:
    world = World(BOTH).put(request(), started(), chunk(0)).until(2_050)
    world.put(started(at_ms=2_060, attempt=2, run="r2"), chunk(0, at_ms=2_100, attempt=2, run="r2")).until(4_100)
    world.put(started(at_ms=4_110, attempt=3, run="r3"), chunk(0, at_ms=4_200, attempt=3, run="r3")).until(6_199)
    assert world.cutovers() == [(2, "stall", "cancel", "generator"), (3, "stall", "cancel", "vertex")]
    assert world.endings() == []
    assert world.until(6_200).endings() == ["failed"]
    (event,) = world.written(Closed)
    assert event.cause == "stalled"
    assert event.reason == "the answer stalled, and every retry was used and the fallback was used"


def test_a_retry_without_a_first_token_goes_to_the_cloud_at_its_deadline() -> None:
    world = World(BOTH).put(request(), started(), chunk(0)).until(2_250)
    assert world.cutovers() == [(2, "stall", "cancel", "generator"), (3, "ttft", "cancel", "vertex")]


@pytest.mark.parametrize("policy", [ALONE, BOTH])
def test_dead_worker_leads_to_another_attempt_at_once(policy: RouterConfig) -> None:
    world = World(policy).put(request(), started(), chunk(0), dead(last_seq=0))
    assert world.cutovers() == [(2, "hard_error", "cancel", "generator")]
    assert len(retried(world)) == 1


def test_prompt_that_kills_workers_is_not_tried_for_ever() -> None:
    world = World(replace(ALONE, max_retries=2)).put(request(), started(), dead())
    for attempt in (2, 3):
        world.put(started(at_ms=100 * attempt, attempt=attempt, run="x"), dead(attempt, "x", 100 * attempt + 1))
    assert world.endings() == ["failed"]
    assert world.written(Closed)[0].reason == "engine_dead: died (every retry was used)"
    assert len(retried(world)) == 2


def test_other_failures_go_to_the_cloud_or_end() -> None:
    """If an attempt fails while its worker is alive, an interactive request is not retried.

    The next attempt is in the cloud. Without a cloud, the request fails.
    """
    assert World(ALONE).put(request(), started(), failed()).endings() == ["failed"]
    world = World(BOTH).put(request(), started(), failed())
    assert world.cutovers() == [(2, "hard_error", "cancel", "vertex")]


def test_a_missing_first_token_starts_a_race_that_both_may_win() -> None:
    world = World(ALONE).put(request(), started())
    assert world.until(2_199).cutovers() == []
    assert world.until(2_200).cutovers() == [(2, "ttft", "race", "generator")]
    assert world.cancels() == []
    world.put(started(at_ms=2_300, attempt=2, run="r2"), chunk(0, at_ms=2_400))
    assert world.cancels() == [("lost_race", 2)]
    assert world.put(finished(0, at_ms=2_500)).endings() == ["completed"]


def test_request_that_a_killed_worker_had_accepted_is_answered_by_another() -> None:
    world = World(ALONE).put(request()).until(2_200)
    assert world.cutovers() == [(2, "ttft", "race", "generator")]
    world.put(
        started(at_ms=2_300, attempt=2, run="r2"),
        chunk(0, at_ms=2_400, attempt=2, run="r2"),
        finished(0, at_ms=2_500, attempt=2, run="r2"),
    )
    assert world.endings() == ["completed"]
    assert world.cancels() == [("lost_race", 1)]


def test_missing_first_token_with_no_attempt_left_is_waited_for() -> None:
    world = World(ALONE).put(request(), started()).until(59_999)
    assert (len(world.cutovers()), world.endings()) == (1, [])
    assert world.until(60_000).endings() == ["expired"]


@pytest.mark.parametrize("policy", [ALONE, HELD])
def test_prompt_that_must_not_leave_the_premises_may_be_tried_again(policy: RouterConfig) -> None:
    world = World(policy).put(request(egress="forbidden"), verdict(egress="forbidden"), started(), chunk(0))
    assert world.until(2_050).cutovers() == [(2, "stall", "cancel", "generator")]
    assert world.until(30_000).cloud_requests() == []


def test_masked_prompt_stays_masked() -> None:
    masked = (Message(role="user", content="hello [NAME]"),)
    world = World(replace(ALONE, input_gate="hold")).put(
        request(), started(input_gate="hold"), verdict("mask", masked=masked)
    )
    world.put(started(at_ms=30, attempt=2, run="r2", input_gate="hold"), chunk(0, at_ms=40, attempt=2, run="r2"))
    assert world.until(2_040).cutovers() == [(2, "mask", "cancel", "generator"), (3, "stall", "cancel", "generator")]
    assert [again.messages for again in retried(world)] == [masked, masked]


def test_mask_may_come_after_a_retry() -> None:
    masked = (Message(role="user", content="hello [NAME]"),)
    deadlines = Deadlines(verdict_ms=5_000)
    world = World(replace(ALONE, input_gate="hold")).put(request(deadlines=deadlines)).until(2_200)
    world.put(verdict("mask", masked=masked, at_ms=2_300))
    assert world.cutovers() == [(2, "ttft", "race", "generator"), (3, "mask", "cancel", "generator")]
    assert retried(world)[-1].messages == masked


@pytest.mark.parametrize("fields", [{"fallback": "off"}, {"fallback": "race"}])
def test_retry_does_not_depend_on_what_the_request_wants_of_the_cloud(fields: dict[str, Any]) -> None:
    world = World(ALONE).put(request(**fields), started(), chunk(0)).until(2_050)
    assert world.cutovers() == [(2, "stall", "cancel", "generator")]


def test_batch_request_whose_worker_died_is_tried_again_in_its_own_lane() -> None:
    world = World(BOTH).put(request(lane="batch"), started(), chunk(0), dead(last_seq=0))
    assert world.cutovers() == [(2, "hard_error", "cancel", "generator")]
    assert [event.attempt for topic, event in world.log if topic is REQUESTS_BATCH] == [1, 2]
    assert not retried(world), "the interactive ones go first"
    world.put(started(at_ms=70, attempt=2, run="r2"), dead(2, "r2", 80))
    assert world.cutovers()[1:] == []
    assert world.endings() == ["failed"]


def test_batch_request_goes_to_the_cloud_if_its_class_says_so() -> None:
    classes = ServiceClasses({"night": ClassSpec(lane="batch", cloud=True)}, WIDEST_BOUNDS)
    asked = request(lane="batch", service_class="night")
    world = World(replace(BOTH, classes=classes)).put(asked, started(), dead())
    world.put(started(at_ms=70, attempt=2, run="r2"), dead(2, "r2", 80))
    assert world.cutovers()[1:] == [(3, "hard_error", "cancel", "vertex")]


def test_batch_requests_in_the_cloud_count_in_its_budgets() -> None:
    classes = ServiceClasses({"night": ClassSpec(lane="batch", cloud=True)}, WIDEST_BOUNDS)
    world = World(RouterConfig(fallback="vertex", classes=classes, limits=FallbackLimits(ratio=1.0, free=1)))
    for number in range(2):
        rid = request_id(number)
        world.put(request(rid, lane="batch", service_class="night"), started(rid), failed(rid))
    assert len(world.cloud_requests()) == 1
    assert [event.reason for event in world.written(Closed)] == ["unavailable: refused (the fallback budget is spent)"]


def test_class_may_keep_interactive_requests_out_of_the_cloud() -> None:
    classes = ServiceClasses({"home": ClassSpec(cloud=False)}, WIDEST_BOUNDS)
    asked = request(service_class="home")
    late = World(replace(BOTH, classes=classes)).put(asked, started()).until(59_000)
    assert [target for *_, target in late.cutovers()] == ["generator"]
    assert World(replace(BOTH, classes=classes)).put(asked, started(), failed()).endings() == ["failed"]


@pytest.mark.parametrize("error_class", ["unavailable", "overloaded", "timeout", "internal"])
def test_batch_request_begins_again_after_a_failure_that_may_pass(error_class: str) -> None:
    world = World(replace(ALONE, max_batch_retries=2)).put(
        request(lane="batch"), started(), failed(error_class=error_class)
    )
    assert world.until(2_059).cutovers() == []
    assert world.until(2_060).cutovers() == [(2, "hard_error", "cancel", "generator")]
    world.put(started(at_ms=2_100, attempt=2, run="r2"), failed(at_ms=2_200, attempt=2, run="r2"))
    assert len(world.until(6_199).cutovers()) == 1
    assert world.until(6_200).cutovers()[1:] == [(3, "hard_error", "cancel", "generator")]
    world.put(started(at_ms=6_300, attempt=3, run="r3"), failed(at_ms=6_400, attempt=3, run="r3"))
    assert world.endings() == ["failed"]
    hopeless = World(ALONE).put(request(lane="batch"), started(), failed(error_class=error_class, retryable=False))
    assert hopeless.endings() == ["failed"]


def test_batch_request_waits_at_most_a_minute_for_its_next_attempt() -> None:
    world = World(replace(ALONE, max_batch_retries=8)).put(request(lane="batch", deadlines=Deadlines(total_ms=500_000)))
    at_ms = 10
    for attempt, wait_ms in enumerate((2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000), 1):
        world.put(started(at_ms=at_ms, attempt=attempt, run="x"), failed(at_ms=at_ms, attempt=attempt, run="x"))
        at_ms += wait_ms
        assert len(world.until(at_ms - 1).cutovers()) == attempt - 1
        assert len(world.until(at_ms).cutovers()) == attempt


def test_no_attempt_is_begun_whose_number_no_event_may_have() -> None:
    world = World(replace(ALONE, max_batch_retries=100)).put(request(lane="batch"))
    for number in range(1, 101):
        assert world.endings() == []
        world.put(started(at_ms=100 * number, attempt=number, run="x"), dead(number, "x", 100 * number + 1))
    for cutover in world.written(Cutover):
        value, headers = encode(cutover)
        assert decode(value, headers, RID.encode()) == cutover
    assert [attempt for attempt, *_ in world.cutovers()] == list(range(2, 101))
    assert world.written(Closed)[0].reason == "engine_dead: died (every retry was used)"


def test_batch_requests_neither_use_the_retry_budget_nor_wait_for_it() -> None:
    policy = replace(ALONE, retry_limits=FallbackLimits(ratio=0.0, free=0))
    world = World(policy).put(request(lane="batch"), started(), dead())
    assert world.cutovers() == [(2, "hard_error", "cancel", "generator")]
    one = replace(ALONE, retry_limits=FallbackLimits(ratio=0.0, free=1))
    other = request_id(1)
    world = World(one).put(request(lane="batch"), started(), dead(), request(other), started(other, run="r9"))
    world.put(failed(other, run="r9", at_ms=61, error_class="engine_dead"))
    assert world.cutovers(other) == [(2, "hard_error", "cancel", "generator")]


def test_a_silent_batch_answer_is_retried_at_its_stall_deadline() -> None:
    asked = request(lane="batch", deadlines=Deadlines(stall_ms=20_000))
    world = World(BOTH).put(asked, started(), chunk(0)).until(20_049)
    assert (world.cutovers(), world.endings()) == ([], [])
    assert world.until(20_050).cutovers() == [(2, "stall", "cancel", "generator")]
    assert [event.attempt for topic, event in world.log if topic is REQUESTS_BATCH] == [1, 2]


def test_a_batch_answer_may_be_silent_for_ten_seconds() -> None:
    world = World(ALONE).put(request(lane="batch", deadlines=Deadlines(stall_ms=100)), started(), chunk(0))
    assert world.until(10_049).cutovers() == []
    assert world.until(10_050).cutovers() == [(2, "stall", "cancel", "generator")]


def test_silence_ends_no_batch_request_whose_prompt_was_not_kept() -> None:
    world = World(replace(ALONE, prompt_chars=4)).put(request(lane="batch"), started(), chunk(0)).until(59_999)
    assert (world.cutovers(), world.endings()) == ([], [])
    assert world.until(60_000).endings() == ["expired"]


def test_silence_ends_no_batch_request() -> None:
    world = World(RouterConfig()).put(request(lane="batch"), started(), chunk(0)).until(59_999)
    assert (world.cutovers(), world.endings()) == ([], [])
    assert world.until(60_000).endings() == ["expired"]


def test_batch_request_that_waits_for_its_turn_is_not_tried_again() -> None:
    assert World(ALONE).put(request(lane="batch")).until(59_999).cutovers() == []


def test_a_batch_request_of_a_dead_worker_is_raced_by_another() -> None:
    asked = request(lane="batch", deadlines=Deadlines(stall_ms=20_000))
    world = World(BOTH).put(asked).until(5_000).put(started(at_ms=5_000)).until(24_999)
    assert world.cutovers() == []
    assert world.until(25_000).cutovers() == [(2, "ttft", "race", "generator")]
    assert world.until(50_000).cutovers()[1:] == [], "the second attempt waits in a queue"
    world.put(
        started(at_ms=50_100, attempt=2, run="r2"),
        chunk(0, at_ms=50_200, attempt=2, run="r2"),
        finished(0, at_ms=50_300, attempt=2, run="r2"),
    )
    assert world.endings() == ["completed"]


def test_open_breaker_prefers_the_cloud() -> None:
    world = World(replace(BOTH, breaker_trip=1))
    world.put(request(), started(), chunk(0, at_ms=199))
    other = request_id(1)
    world.put(request(other, at_ms=200), started(other, at_ms=201), failed(other, at_ms=202))  # opens the breaker
    assert world.until(2_199).cutovers() == [(2, "stall", "cancel", "vertex")]


def test_spent_retry_budget_is_an_objection() -> None:
    policy = replace(ALONE, retry_limits=FallbackLimits(ratio=0.0, free=0))
    waits = World(policy).put(request(), started(), chunk(0)).until(30_000)
    assert (waits.cutovers(), waits.endings()) == ([], [])
    closes = World(replace(policy, when_spent="close")).put(request(), started(), chunk(0)).until(2_050)
    assert closes.endings() == ["failed"]
    assert "the retry budget is spent" in closes.written(Closed)[0].reason


def test_retry_budget_is_counted_from_the_log() -> None:
    policy = replace(ALONE, retry_limits=FallbackLimits(ratio=0.0, free=2))
    world = World(policy)
    ids = [request_id(number) for number in range(3)]
    world.put(*(request(rid) for rid in ids), *(started(rid) for rid in ids), *(chunk(0, rid) for rid in ids[:2]))
    world.until(2_060)
    world.restart()
    world.put(chunk(0, ids[2], at_ms=2_070)).until(4_080)
    assert [len(retried(world, rid)) for rid in ids] == [1, 1, 0]


def test_prompt_beyond_the_memory_for_prompts_cannot_be_tried_again() -> None:
    world = World(replace(ALONE, prompt_chars=4)).put(request(), started(), chunk(0)).until(2_050)
    (event,) = world.written(Closed)
    assert (event.cause, event.reason) == (
        "stalled",
        "the answer stalled, and its prompt was not kept and fallback is off",
    )


def test_without_retries_or_a_cloud_a_stall_ends_at_its_deadline() -> None:
    world = World().put(request(), started(), chunk(0))
    assert world.until(2_049).endings() == []
    assert world.until(2_050).endings() == ["failed"]
    (event,) = world.written(Closed)
    assert event.reason == "the answer stalled, and there are no retries and fallback is off"
    assert world.cancels() == [("expired", None)]


def test_router_that_was_killed_after_the_cutover_is_finished_by_the_next() -> None:
    world = World(ALONE).put(request(), started(), chunk(0)).until(2_050)
    world.log = [entry for entry in world.log if entry[1] not in retried(world)]
    world.restart()
    assert len(retried(world)) == 1


class WithoutRight(World):
    """A world in which routers may not write to the topic of interactive requests."""

    def write(self, due: Writes) -> None:
        super().write([write for write in due if write.topic is not REQUESTS])


def test_refused_event_that_is_no_longer_wanted_costs_no_ticks() -> None:
    world = WithoutRight(BOTH).put(request(), started(), chunk(0)).until(2_300)
    world.put(started(at_ms=2_310, attempt=3, run="r3"))
    assert [target for *_, target in world.cutovers()] == ["generator", "vertex"]
    for seq in range(60):
        world.put(chunk(seq, at_ms=2_320 + 100 * seq, attempt=3, run="r3"))
    alarm_us = next_alarm_us(world.routers[0])
    assert alarm_us is not None
    assert alarm_us - world.now_us > 1_000 * MS


def test_batch_request_that_is_read_after_its_first_failure_is_tried_again():
    world = World(RouterConfig(max_batch_retries=1)).put(started(), failed())
    assert world.endings() == []
    asked = request(lane="batch", at_ms=61, deadlines=Deadlines(total_ms=60_000))
    assert world.put(asked).until(2_060).cutovers() == [(2, "hard_error", "cancel", "generator")]


def test_prompts_of_a_backlog_leave_room_for_those_of_interactive_requests():
    world = World(RouterConfig(max_retries=1, max_batch_retries=1, prompt_chars=100))
    world.put(*(request(request_id(number), lane="batch") for number in range(1, 41)))
    world.put(request(), started(), chunk(0)).until(2_050)
    assert world.cutovers() == [(2, "stall", "cancel", "generator")]
