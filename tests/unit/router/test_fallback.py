"""Test which requests get another attempt, which requests get none, and where the other attempt runs."""

from dataclasses import replace

import pytest
from msgspec import structs

from schemas.requests import Deadlines, Message
from schemas.stream import Closed, Cutover, Usage
from schemas.topics import REQUESTS, STREAMS
from services.router.config import FallbackLimits, Prices, RouterConfig
from tests.unit.router.world import (
    MS,
    RID,
    T0,
    World,
    chunk,
    cleared,
    failed,
    finished,
    recall,
    request,
    request_id,
    started,
    tick,
    verdict,
)

CLOUD = RouterConfig(fallback="vertex")
HELD = RouterConfig(fallback="vertex", input_gate="hold")


def answer_of_attempt_2(world: World, at_ms: float = 300) -> World:
    return world.put(
        started(at_ms=at_ms, attempt=2, run="r2", engine="vertex"),
        chunk(0, at_ms=at_ms, attempt=2, run="r2"),
        finished(0, at_ms=at_ms, attempt=2, run="r2"),
    )


def test_missed_first_token_cancels_and_republishes_at_the_deadline() -> None:
    world = World(CLOUD).put(request(), started())
    assert world.until(199).cutovers() == []
    assert world.until(200).cutovers() == [(2, "ttft", "cancel", "vertex")]
    (again,) = world.cloud_requests()
    assert (again.attempt, again.messages, again.at) == (2, request().messages, T0)
    assert world.cancels() == [("cutover", 1)]
    answer_of_attempt_2(world)
    assert world.endings() == ["completed"]
    account = world.until(1_500).account()
    assert [book.trigger for book in account.attempts] == [None, "ttft"]
    assert account.cost_usd == pytest.approx((3 * 0.30 + 2.50) / 1e6)


def test_clock_starts_at_receipt_and_a_started_execution_does_not_stop_it() -> None:
    world = World(CLOUD).put(request(), started(at_ms=150)).until(200)
    assert len(world.cloud_requests()) == 1


def test_first_token_in_time_needs_no_fallback() -> None:
    world = World(CLOUD).put(request(), started(), chunk(0, at_ms=199)).until(250)
    assert world.cutovers() == []


def test_race_lets_the_first_chunk_decide_and_cancels_the_loser() -> None:
    world = World(CLOUD).put(request(fallback="race"), started()).until(200)
    assert world.cutovers() == [(2, "ttft", "race", "vertex")]
    assert world.cancels() == []
    world.put(started(at_ms=220, attempt=2, run="r2"), chunk(0, at_ms=230))
    assert world.cancels() == [("lost_race", 2)]
    assert world.put(finished(0, at_ms=240)).endings() == ["completed"]


def test_race_won_by_the_cloud_cancels_the_engine() -> None:
    world = World(CLOUD).put(request(fallback="race"), started()).until(200)
    answer_of_attempt_2(world)
    assert world.cancels() == [("lost_race", 1)]
    assert world.endings() == ["completed"]


def test_race_goes_on_when_one_of_the_two_fails() -> None:
    world = World(CLOUD).put(request(fallback="race"), started()).until(200)
    world.put(started(at_ms=210, attempt=2, run="r2"), failed(at_ms=220, attempt=2, run="r2"))
    assert world.endings() == []
    assert world.put(chunk(0, at_ms=250), finished(0, at_ms=260)).endings() == ["completed"]


def test_void_cutover_brings_about_nothing() -> None:
    """If the first chunk precedes a TTFT cutover on the log, the cutover is void and has no effect."""
    world = World(CLOUD).put(request(), started())
    world.now_us = T0 + 200 * MS
    late = [write for router in world.routers for write in tick(router, world.now_us)]
    world.append(STREAMS, chunk(0, at_ms=199))
    world.write(late)
    assert len(world.written(Cutover)) == 1
    assert world.cancels() == []
    assert world.cloud_requests() == []
    assert world.put(finished(0, at_ms=220)).endings() == ["completed"]


def test_stall_after_a_void_cutover_can_still_cut_over() -> None:
    world = World(CLOUD).put(request(), started())
    world.now_us = T0 + 200 * MS
    late = [write for router in world.routers for write in tick(router, world.now_us)]
    world.append(STREAMS, chunk(0, at_ms=199))
    world.write(late)
    assert world.until(2_200).cutovers() == [(2, "ttft", "cancel", "vertex"), (2, "stall", "cancel", "vertex")]


def test_hard_error_falls_over_at_once() -> None:
    world = World(CLOUD).put(request(), started(), failed())
    assert world.cutovers() == [(2, "hard_error", "cancel", "vertex")]
    assert len(world.cloud_requests()) == 1
    assert world.cancels() == []
    assert answer_of_attempt_2(world).endings() == ["completed"]


def test_hard_error_mid_answer_falls_over_at_once() -> None:
    world = World(CLOUD).put(request(), started(), chunk(0), failed(last_seq=0))
    assert world.cutovers() == [(2, "hard_error", "cancel", "vertex")]


def test_error_that_another_attempt_would_not_mend_closes() -> None:
    world = World(CLOUD).put(request(), started(), failed(error_class="bad_request", retryable=False))
    assert (world.cutovers(), world.endings()) == ([], ["failed"])


def test_stall_cuts_over_at_the_last_chunk_that_was_read() -> None:
    world = World(CLOUD).put(request(), started(), chunk(0), chunk(1, at_ms=500))
    assert world.until(2_499).cutovers() == []
    assert world.until(2_500).cutovers() == [(2, "stall", "cancel", "vertex")]
    (event,) = world.written(Cutover)
    assert event.seen_seq == 1
    assert world.cancels() == [("cutover", 1)]


def test_repetition_of_an_old_chunk_is_not_a_sign_of_life() -> None:
    world = World(CLOUD).put(request(), started(), chunk(0), chunk(0, at_ms=1_900)).until(2_050)
    assert len(world.written(Cutover)) == 1


def test_finished_answer_does_not_stall_while_safety_looks_at_it() -> None:
    world = World(CLOUD).put(request(), started(output_check="on"), chunk(0), finished(0)).until(50_000)
    assert world.cutovers() == []
    assert world.put(cleared(0, at_ms=50_001)).endings() == ["completed"]


def test_second_failure_closes_failed() -> None:
    world = World(CLOUD).put(request(), started(), failed())
    world.put(started(at_ms=100, attempt=2, run="r2"), failed(at_ms=110, attempt=2, run="r2"))
    assert world.endings() == ["failed"]
    (event,) = world.written(Closed)
    assert event.reason == "unavailable: refused (the fallback was used)"


def test_two_fallbacks_when_policy_allows_them() -> None:
    world = World(RouterConfig(fallback="vertex", max_fallbacks=2)).put(request(), started(), failed())
    world.put(started(at_ms=100, attempt=2, run="r2"), failed(at_ms=110, attempt=2, run="r2"))
    assert [cutover[0] for cutover in world.cutovers()] == [2, 3]
    assert [again.attempt for again in world.cloud_requests()] == [2, 3]


@pytest.mark.parametrize(
    ("policy", "fields"),
    [(RouterConfig(), {}), (CLOUD, {"fallback": "off"}), (CLOUD, {"egress": "forbidden"}), (CLOUD, {"lane": "batch"})],
)
def test_late_request_that_may_not_fall_back_waits(policy: RouterConfig, fields: dict[str, str]) -> None:
    world = World(policy).put(request(**fields), started()).until(59_000)
    assert (world.cutovers(), world.cloud_requests(), world.endings()) == ([], [], [])


def test_batch_request_does_not_fall_back() -> None:
    world = World(CLOUD).put(request(lane="batch"), started()).until(1_000).put(failed(at_ms=1_001))
    assert (world.cutovers(), world.endings()) == ([], ["failed"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fallback": "off"}, "the request asks for no fallback"),
        ({"egress": "forbidden"}, "its prompt must not leave the premises"),
    ],
)
def test_failed_request_that_may_not_fall_back_says_why(fields: dict[str, str], reason: str) -> None:
    world = World(CLOUD).put(request(**fields), started(), failed())
    (event,) = world.written(Closed)
    assert reason in event.reason


def test_prompt_waits_for_its_verdict_and_then_goes() -> None:
    world = World(HELD).put(request(), started(input_gate="hold")).until(400)
    assert (world.cutovers(), world.cloud_requests()) == ([], [])
    world.put(verdict(at_ms=401))
    assert world.cutovers() == [(2, "ttft", "cancel", "vertex")]
    assert len(world.cloud_requests()) == 1


@pytest.mark.parametrize("word", [verdict("deny", at_ms=300), verdict(at_ms=300, egress="forbidden")])
def test_prompt_that_policy_keeps_never_goes(word: object) -> None:
    world = World(HELD).put(request(), started(input_gate="hold")).until(250).put(word)  # type: ignore[arg-type]
    world.put(failed(at_ms=310)).until(60_000)
    assert world.cloud_requests() == []
    assert world.endings() in (["denied"], ["failed"])


def test_verdict_after_the_cutover_still_keeps_the_prompt() -> None:
    """A prompt is not sent to the cloud if egress is forbidden, even if the verdict comes after the cutover."""
    world = World(CLOUD).put(request(), started())
    world.routers.clear()
    world.put(Cutover(**_about(200), attempt=2, trigger="ttft"), verdict(at_ms=210, egress="forbidden"))
    world.join()
    assert world.cloud_requests() == []
    assert world.endings() == ["failed"]


def test_prompt_whose_mask_came_after_the_cutover_does_not_leave_unmasked() -> None:
    world = World(CLOUD).put(request(), started())
    world.routers.clear()
    world.put(Cutover(**_about(200), attempt=2, trigger="ttft"), verdict("mask", at_ms=210))
    world.join()
    assert (world.cloud_requests(), world.endings()) == ([], ["failed"])


def test_killed_between_cutover_and_republish_the_next_republishes_once() -> None:
    world = World(CLOUD).put(request(), started())
    world.routers.clear()
    world.put(Cutover(**_about(200), attempt=2, trigger="ttft"))
    world.join()
    world.restart()
    assert len(world.cloud_requests()) == 1


def test_mask_reruns_the_masked_prompt_on_the_premises() -> None:
    masked = (Message(role="user", content="hello [NAME]"),)
    world = World(HELD).put(request(), started(input_gate="hold"), chunk(0, at_ms=10))
    world.put(verdict("mask", masked=masked))
    assert world.cutovers() == [(2, "mask", "cancel", "generator")]
    assert world.cancels() == [("cutover", 1)]
    (again,) = [e for topic, e in world.log if topic is REQUESTS and e.attempt == 2]  # type: ignore[union-attr]
    assert again.messages == masked  # type: ignore[union-attr]
    assert world.cloud_requests() == []
    world.put(
        started(at_ms=30, attempt=2, run="r2", input_gate="hold"),
        chunk(0, at_ms=40, attempt=2, run="r2"),
        finished(0, at_ms=50, attempt=2, run="r2"),
    )
    assert world.endings() == ["completed"]


def test_masked_rerun_has_its_own_clock_and_only_the_masked_prompt_leaves() -> None:
    masked = (Message(role="user", content="hello [NAME]"),)
    world = World(HELD).put(request(), started(input_gate="hold"), verdict("mask", masked=masked, at_ms=100))
    assert world.until(299).cloud_requests() == []
    (again,) = world.until(300).cloud_requests()
    assert (again.attempt, again.messages) == (3, masked)


def test_mask_works_without_any_fallback() -> None:
    masked = (Message(role="user", content="x"),)
    world = World(RouterConfig(input_gate="hold")).put(
        request(), started(input_gate="hold"), verdict("mask", masked=masked)
    )
    assert world.cutovers() == [(2, "mask", "cancel", "generator")]


def test_mask_without_a_masked_prompt_closes() -> None:
    world = World(HELD).put(request(), started(input_gate="hold"), verdict("mask"))
    assert world.endings() == ["failed"]


def test_stop_recall_ends_the_request_without_another_attempt() -> None:
    world = World(CLOUD).put(request(), started(output_check="on"), chunk(0), recall(), failed(at_ms=80))
    assert (world.cutovers(), world.endings()) == ([], ["recalled"])


def test_deadlines_are_bounded_by_policy_and_grow_with_the_prompt() -> None:
    policy = replace(CLOUD, ttft_bounds_ms=(300, 400), ttft_ms_per_1000_chars=50.0)
    long = (Message(role="user", content="x" * 2_000),)
    world = World(policy).put(request(messages=long, deadlines=Deadlines(ttft_ms=10)))
    assert world.until(399).cutovers() == []
    assert len(world.until(400).cutovers()) == 1


def test_question_read_after_its_answer_failed_is_waited_for() -> None:
    world = World(CLOUD).put(started(), failed())
    assert (world.cutovers(), world.endings()) == ([], [])
    assert world.put(request(at_ms=61)).cutovers() == [(2, "hard_error", "cancel", "vertex")]


def test_spent_budget_closes_what_failed_and_says_so() -> None:
    world = World(replace(CLOUD, limits=FallbackLimits(ratio=0.0, free=1)))
    first, second = request_id(1), request_id(2)
    for rid in (first, second):
        world.put(request(rid), started(rid), failed(rid))
    assert len(world.cloud_requests()) == 1
    (event,) = world.written(Closed, second)
    assert event.reason == "unavailable: refused (the fallback budget is spent)"


@pytest.mark.parametrize(("when_spent", "endings"), [("wait", []), ("close", ["failed"])])
def test_late_request_waits_or_closes_when_the_budget_is_spent(when_spent: str, endings: list[str]) -> None:
    policy = replace(CLOUD, limits=FallbackLimits(ratio=0.0, free=0), when_spent=when_spent)  # type: ignore[arg-type]
    world = World(policy).put(request(), started()).until(10_000)
    assert (world.cutovers(), world.endings()) == ([], endings)


def test_waiting_request_goes_when_the_budget_has_room_again() -> None:
    world = World(replace(CLOUD, limits=FallbackLimits(ratio=0.0, free=1), total_max_ms=200_000))
    other = request_id(1)
    deadlines = Deadlines(total_ms=150_000)
    world.put(request(other), started(other), failed(other), request(deadlines=deadlines), started()).until(59_000)
    assert world.cloud_requests(RID) == []
    assert len(world.until(62_500).cloud_requests(RID)) == 1


def test_void_cutover_gives_its_place_in_the_budget_back() -> None:
    world = World(replace(CLOUD, limits=FallbackLimits(ratio=0.0, free=1))).put(request(), started())
    world.now_us = T0 + 200 * MS
    late = [write for router in world.routers for write in tick(router, world.now_us)]
    world.append(STREAMS, chunk(0, at_ms=199))
    world.write(late)
    other = request_id(1)
    world.put(request(other, at_ms=210), failed(other, at_ms=211))
    assert len(world.cloud_requests(other)) == 1


def test_money_is_reserved_at_the_estimate_and_settled_at_the_usage() -> None:
    prices = Prices(input=0.0, output=1_000_000 / 512)  # an answer of full length costs one dollar
    world = World(replace(CLOUD, limits=FallbackLimits(ratio=1.0, free=100, usd=1.5), prices=prices))
    ids = [request_id(n) for n in range(3)]
    world.put(request(ids[0]), failed(ids[0]), request(ids[1]), failed(ids[1]))
    assert [len(world.cloud_requests(rid)) for rid in ids[:2]] == [1, 0]
    usage = Usage(completion_tokens=51)
    world.put(
        started(ids[0], at_ms=90, attempt=2, run="r2"),
        structs.replace(finished(-1, ids[0], attempt=2, run="r2"), usage=usage),
        request(ids[2], at_ms=95),
        failed(ids[2], at_ms=95),
    )
    assert len(world.cloud_requests(ids[2])) == 1


def test_prompt_beyond_the_memory_for_prompts_has_no_fallback() -> None:
    world = World(replace(CLOUD, prompt_chars=7))
    first, second = request_id(1), request_id(2)
    world.put(request(first), request(second), failed(second))
    assert "not kept" in world.written(Closed, second)[0].reason
    assert world.put(failed(first)).endings(first) == []


def test_memory_for_prompts_is_given_back() -> None:
    world = World(replace(CLOUD, prompt_chars=7))
    for number in range(3):
        rid = request_id(number)
        world.put(request(rid), started(rid), chunk(0, rid), finished(0, rid), request(request_id(9)))
        assert world.endings(rid) == ["completed"]


def _about(at_ms: float) -> dict[str, object]:
    return {"request_id": RID, "tenant": "acme", "at": T0 + int(at_ms * MS), "source": "router/0"}
