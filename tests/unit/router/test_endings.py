"""Test when the router closes a request, with which outcome, and what the request's account says."""

import pytest

from schemas.requests import Deadlines, Delivery, Lane, Message
from schemas.side_events import Account
from schemas.stream import Closed
from schemas.topics import DAY_MS, REQUESTS, STREAMS
from schemas.wire import AnyEvent
from services.bus import Received, partition_for
from services.router import partition
from services.router.config import FallbackLimits, RouterConfig
from tests.unit.router.world import (
    MS,
    PARTITIONS,
    RID,
    T0,
    World,
    about,
    attached,
    chunk,
    cleared,
    closed,
    detached,
    failed,
    finished,
    recall,
    request,
    request_id,
    started,
    verdict,
)

HERE = partition_for(RID, PARTITIONS)


def test_finished_unchecked_answer_is_completed_and_accounted_for() -> None:
    world = World().put(request(), started(), chunk(0), chunk(1, at_ms=70), finished(1))
    assert world.endings() == ["completed"]
    assert world.cancels() == []
    account = world.account()
    (book,) = account.attempts
    assert (book.first_chunk_at, book.last_chunk_at, book.last_seq) == (T0 + 50 * MS, T0 + 70 * MS, 1)
    assert book.usage.completion_tokens == 2
    assert account.received_at == T0
    assert world.routers[0].open == 0


def test_checked_answer_is_completed_when_it_is_finally_cleared() -> None:
    world = World().put(request(), started(output_check="on"), chunk(0), finished(0))
    assert world.endings() == []
    assert world.put(cleared(0)).endings() == ["completed"]


def test_a_worker_cannot_waive_the_check_that_the_router_insists_on() -> None:
    world = World(RouterConfig(output_check="on")).put(request(), started(), chunk(0), finished(0))
    assert world.endings() == []
    assert world.put(cleared(0)).endings() == ["completed"]


def test_a_worker_cannot_waive_the_verdict_that_the_router_insists_on() -> None:
    world = World(RouterConfig(input_gate="hold")).put(request(), started(), chunk(0), finished(0))
    assert world.until(1_500).endings() == ["failed"]
    assert world.written(Closed)[0].cause == "no_verdict"


def test_answer_with_a_missing_chunk_is_not_complete() -> None:
    world = World().put(request(), started(), chunk(0), chunk(2), finished(2))
    assert world.endings() == []
    assert world.put(chunk(1, at_ms=95)).endings() == ["completed"]


def test_late_missing_chunk_never_comes_and_the_request_expires() -> None:
    world = World().put(request(), started(), chunk(0), finished(1)).until(59_999)
    assert world.endings() == []
    assert world.until(60_000).endings() == ["expired"]


def test_stop_recall_cancels_at_once_and_closes_recalled() -> None:
    world = World().put(request(), started(output_check="on"), chunk(0), recall())
    assert world.endings() == ["recalled"]
    assert world.cancels() == [("recalled", None)]


def test_redaction_does_not_end_the_answer_and_is_counted() -> None:
    world = World().put(
        request(), started(output_check="on"), chunk(0), recall(action="redact"), finished(0), cleared(0)
    )
    assert world.endings() == ["completed"]
    assert world.account().recalls == 1


def test_denied_prompt_cancels_even_a_worker_that_has_not_started() -> None:
    world = World(RouterConfig(input_gate="hold")).put(request(), verdict("deny"))
    assert world.endings() == ["denied"]
    assert world.cancels() == [("denied", None)]
    assert world.account().verdict_at == T0 + 20 * MS


def test_denied_prompt_of_a_finished_worker_cancels_nobody() -> None:
    world = World(RouterConfig(input_gate="hold"))
    world.put(request(), started(input_gate="hold"), chunk(0, at_ms=10), finished(0, at_ms=15), verdict("deny"))
    assert (world.endings(), world.cancels()) == (["denied"], [])


def test_failed_execution_closes_failed_with_its_message() -> None:
    world = World().put(request(), started(), failed())
    assert world.endings() == ["failed"]
    (event,) = world.written(Closed)
    assert event.reason == "unavailable: refused"
    assert world.account().attempts[0].error_class == "unavailable"


def test_failure_before_any_start_counts() -> None:
    assert World().put(request(), failed()).endings() == ["failed"]


def test_failure_of_a_zombie_run_does_not() -> None:
    world = World().put(request(), started(), failed(run="other"))
    assert world.endings() == []


def test_worker_that_was_cancelled_by_somebody_else_closes_cancelled() -> None:
    assert World().put(request(), started(), failed(error_class="cancelled", retryable=False)).endings() == [
        "cancelled"
    ]


def test_client_gone_longer_than_its_grace_cancels() -> None:
    world = World(RouterConfig(client_grace_ms=500)).put(
        request(), attached(), started(), chunk(0), detached(at_ms=100)
    )
    assert world.until(599).endings() == []
    assert world.until(600).endings() == ["cancelled"]
    assert world.cancels() == [("client_gone", None)]


def test_client_that_comes_back_in_time_is_not_gone() -> None:
    world = World(RouterConfig(client_grace_ms=500)).put(
        request(), attached(), started(), detached(at_ms=100), attached("c2", at_ms=300)
    )
    assert world.until(5_000).endings() == []
    assert world.put(detached("c2", at_ms=5_100)).until(5_700).endings() == ["cancelled"]


@pytest.mark.parametrize("receipts", [[], [attached()], [attached(), detached(reason="complete")]])
def test_nobody_is_gone_who_never_came_or_stays_or_has_everything(receipts: list[object]) -> None:
    world = World(RouterConfig(client_grace_ms=500)).put(request(), *receipts, started())  # type: ignore[arg-type]
    assert world.until(59_000).endings() == []


def test_two_clients_and_one_leaves() -> None:
    world = World(RouterConfig(client_grace_ms=500))
    world.put(request(), attached(), attached("c2"), started(), detached(at_ms=100))
    assert world.until(10_000).endings() == []


def test_total_deadline_expires_and_stops_the_worker() -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), started())
    assert world.until(999).endings() == []
    assert world.until(1_000).endings() == ["expired"]
    assert world.cancels() == [("expired", None)]


def test_request_that_nobody_took_up_expires() -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000))).until(3_000)
    assert world.endings() == ["expired"]
    assert world.account().attempts[0].started_at is None


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "no worker began it"),
        ([started()], "no first token"),
        ([started(output_check="on"), chunk(0), finished(0)], "its answer was complete, but not checked to its end"),
        ([started(), chunk(0), finished(1)], "a part of its answer is missing"),
    ],
)
def test_expired_request_says_what_it_lacked(events: list[AnyEvent], why: str) -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), *events).until(1_000)
    (event,) = world.written(Closed)
    assert (event.outcome, event.cause) == ("expired", "deadline")
    assert event.reason == f"not answered within 1000 ms of receipt: {why}"


def test_expired_request_whose_budget_was_spent_says_so() -> None:
    policy = RouterConfig(fallback="vertex", limits=FallbackLimits(ratio=0.0, free=0))
    late = World(policy).put(request(), started()).until(60_000)
    assert late.written(Closed)[0].reason.endswith("no first token, and a budget for further attempts is spent")
    stalled = World(policy).put(request(), started(), chunk(0)).until(60_000)
    assert stalled.written(Closed)[0].reason.endswith("its answer stalled, and a budget for further attempts is spent")


def test_policy_bounds_the_total_deadline() -> None:
    world = World(RouterConfig(total_max_ms=2_000)).put(request(deadlines=Deadlines(total_ms=50_000)))
    assert world.until(2_000).endings() == ["expired"]


def test_receipt_in_the_future_counts_from_when_it_was_read() -> None:
    late = request(at_ms=3_600_000)
    world = World()
    world.append(REQUESTS, late)
    assert world.until(60_000).endings() == ["expired"]


def test_missing_verdict_closes_failed_when_the_gate_holds() -> None:
    world = World(RouterConfig(input_gate="hold")).put(request(), started(input_gate="hold"), chunk(0))
    assert world.until(999).endings() == []
    assert world.until(1_000).endings() == ["failed"]


def test_a_missing_verdict_does_not_matter_when_the_gate_is_off() -> None:
    world = World(RouterConfig()).put(request(), started(input_gate="off"), chunk(0))
    assert world.until(1_500).endings() == []


def test_answer_that_is_read_before_its_request_is_decided_by_itself() -> None:
    world = World().put(started(), chunk(0), finished(0))
    assert world.endings() == ["completed"]
    assert world.put(request(at_ms=95)).endings() == ["completed"]


def test_stray_events_of_unknown_requests_do_nothing_and_are_forgotten() -> None:
    policy = RouterConfig(total_max_ms=1_000)
    world = World(policy).put(chunk(0), cleared(0))
    assert world.routers[0].open == 1
    assert world.until(3_000).log[2:] == []
    assert world.routers[0].open == 0


def test_late_words_about_a_closed_request_change_nothing() -> None:
    world = World().put(request(), started(), chunk(0), finished(0))
    length = len(world.log)
    world.put(chunk(1, at_ms=200), failed(at_ms=210), request(at_ms=0), closed("failed", at_ms=220))
    assert len(world.log) == length + 4


def test_a_start_long_after_the_end_is_no_new_request() -> None:
    other = next(
        rid for n in range(1, 40) if partition_for(rid := request_id(n), PARTITIONS) == partition_for(RID, PARTITIONS)
    )
    world = World(RouterConfig(total_max_ms=1_000)).put(request(lane="batch"), started(), failed(retryable=False))
    assert world.account().outcome == "failed"
    world.until(5_000).put(
        request(other, 5_000), failed(other, 5_010, retryable=False)
    )  # routers forget the first here
    world.put(started(at_ms=60_000, run="r2", queue_ms=60_000.0), chunk(0, at_ms=60_001, run="r2")).until(100_000)
    assert world.account().outcome == "failed"
    assert world.routers[0].open == 0


def test_a_closed_request_that_is_written_again_is_remembered_longer() -> None:
    """A late ``Started`` does not open a closed request that an edge has written to the log a second time.

    An edge that was cut off from the broker may write unacknowledged requests a second time.
    """
    other = next(rid for n in range(1, 40) if partition_for(rid := request_id(n), PARTITIONS) == HERE)
    world = World(RouterConfig(total_max_ms=1_000)).put(request(), failed(retryable=False))
    world.until(1_500).put(request(at_ms=1_500))
    world.until(2_500).put(request(other, 2_500), failed(other, 2_510, retryable=False))
    world.put(started(at_ms=2_900, run="r2"), chunk(0, at_ms=2_950, run="r2"))
    assert world.routers[0].open == 0
    assert world.until(10_000).endings() == ["failed"]
    assert len(world.written(Account, RID)) == 1


def test_a_start_that_is_read_long_after_it_was_appended_is_no_new_request() -> None:
    """A ``Started`` event that is read a minute after it was appended does not open a closed request again.

    If a router was cut off from the broker for a while, it reads events this late.
    """
    other = next(rid for n in range(1, 40) if partition_for(rid := request_id(n), PARTITIONS) == HERE)
    world = World(RouterConfig(total_max_ms=1_000)).put(request(), failed(retryable=False), request(other))
    world.late_us = 60_000 * MS
    world.put(failed(other, retryable=False), started(at_ms=70, run="r2"))
    assert world.routers[0].open == 0
    world.until(100_000)
    assert world.account().outcome == "failed"
    assert world.endings() == ["failed"]


def test_account_waits_a_moment_for_the_usage_of_a_cancelled_worker() -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), started(), chunk(0)).until(1_000)
    assert world.written(Account) == []
    world.put(failed(at_ms=1_010, error_class="cancelled"))
    assert world.account().attempts[0].error_class == "cancelled"


def test_account_of_a_worker_that_says_nothing_more_counts_what_was_heard() -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), started(), chunk(0), chunk(1)).until(2_000)
    assert world.account().attempts[0].usage.completion_tokens == 2


def test_account_counts_each_chunk_once_and_none_behind_a_gap() -> None:
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), started(), chunk(0), chunk(0), chunk(2, at_ms=60))
    (book,) = world.put(failed(at_ms=70, retryable=False)).account().attempts
    assert (book.usage.completion_tokens, book.last_seq, book.last_chunk_at) == (1, 0, T0 + 50 * MS)
    late = World().put(request(), started(), chunk(0), chunk(2, at_ms=60), chunk(1, at_ms=65), failed(at_ms=70))
    assert (late.account().attempts[0].usage.completion_tokens, late.account().attempts[0].last_seq) == (3, 2)


def test_unreadable_closed_request_is_accounted_for_and_cancelled() -> None:
    world = World().put(closed("rejected"))
    assert world.account().outcome == "rejected"
    assert world.cancels() == [("expired", None)]


@pytest.mark.parametrize("verdict_first", [False, True])
def test_gated_delivery_that_nobody_clears_ends_at_once(verdict_first: bool) -> None:
    """The router closes a request at once if its verdict makes delivery gated and no safety service checks answers.

    Without a safety service, workers refuse requests that ask for gated delivery. But workers do not read verdicts, so
    the router must close a request if only its verdict makes delivery gated.
    """
    judged = verdict(delivery=Delivery(mode="gated"))
    events = [judged, started()] if verdict_first else [started(), judged]
    world = World().put(request(), *events).until(2_000)
    assert world.endings() == ["failed"]
    (event,) = world.written(Closed)
    assert event.reason == "policy makes delivery gated, but no safety service checks the answer"
    assert world.cancels() == [("expired", None)]
    assert world.account().outcome == "failed"


@pytest.mark.parametrize(("exposure", "outcome"), [(2, "completed"), (1, "failed")])
def test_windowed_delivery_that_nobody_clears_ends_with_the_answer(exposure: int, outcome: str) -> None:
    judged = verdict(delivery=Delivery(mode="windowed", max_exposure_tokens=exposure))
    world = World().put(request(), started(), judged, chunk(0), chunk(1))
    assert world.endings() == []
    assert world.put(finished(1)).endings() == [outcome]


@pytest.mark.parametrize("checker", ["worker", "router", "nobody"])
def test_delivery_that_somebody_clears_or_that_is_optimistic_goes_on(checker: str) -> None:
    judged = verdict(delivery=Delivery(mode="optimistic" if checker == "nobody" else "gated"))
    config = RouterConfig(output_check="on" if checker == "router" else "off")
    world = World(config).put(request(), started(output_check="on" if checker == "worker" else "off"), judged)
    assert world.endings() == []


def test_a_mask_comes_before_the_end_of_delivery_that_nobody_clears() -> None:
    masked = (Message(role="user", content="[name]"),)
    judged = verdict("mask", masked=masked, delivery=Delivery(mode="gated"))
    world = World(RouterConfig(input_gate="hold")).put(request(), started(input_gate="hold"), judged)
    assert world.endings() == []
    assert world.put(started(attempt=2, run="r2")).endings() == ["failed"]


def test_more_requests_than_may_be_open_are_turned_away() -> None:
    ids = [rid for n in range(40) if partition_for(rid := request_id(n), PARTITIONS) == 0][:4]
    world = World(RouterConfig(max_open=2)).put(*(request(rid) for rid in ids))
    assert [world.endings(rid) for rid in ids] == [[], [], ["failed"], ["failed"]]
    assert world.cancels(ids[3]) == [("expired", None)]


def test_a_batch_backlog_is_kept_and_takes_no_room_from_interactive() -> None:
    ids = [rid for n in range(200) if partition_for(rid := request_id(n), PARTITIONS) == 0][:8]
    backlog, (first, second) = ids[:6], ids[6:]
    world = World(RouterConfig(max_open=1)).put(*(request(rid, lane="batch") for rid in backlog[:3]))
    world.put(request(first), *(request(rid, lane="batch") for rid in backlog[3:]), request(second)).until(30_000)
    assert [world.endings(rid) for rid in backlog] == [[]] * 6
    assert world.endings(second) == ["failed"]
    assert world.endings(first) == []


def test_more_batch_requests_than_may_be_open_are_turned_away() -> None:
    ids = [rid for n in range(200) if partition_for(rid := request_id(n), PARTITIONS) == 0][:6]
    world = World(RouterConfig(max_batch_open=2)).put(*(request(rid, lane="batch") for rid in ids[:4]))
    assert [world.endings(rid) for rid in ids[:4]] == [[], [], ["failed"], ["failed"]]
    assert world.account(ids[2]).cause == "too_many_open"
    world.put(started(rid=ids[0]), chunk(0, rid=ids[0]), finished(0, rid=ids[0]))
    assert world.endings(ids[0]) == ["completed"]
    world.put(request(ids[4], lane="batch"), request(ids[5], lane="batch"))
    assert [world.endings(rid) for rid in ids[4:]] == [[], ["failed"]]


def test_timers_of_finished_batch_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SPARE", 10)
    ids = [rid for n in range(200) if partition_for(rid := request_id(n), PARTITIONS) == 0][:60]
    day = Deadlines(total_ms=DAY_MS)
    world = World(RouterConfig()).put(request(ids[0], lane="batch", deadlines=day))
    for rid in ids[1:]:
        world.put(request(rid, lane="batch", deadlines=day), started(rid), chunk(0, rid), finished(0, rid))
        assert world.endings(rid) == ["completed"]
    assert len(world.routers[0]._partitions[0]._timers) <= 2 * 2 + 10
    assert world.until(DAY_MS - 1).endings(ids[0]) == []
    assert world.until(DAY_MS).endings(ids[0]) == ["expired"]


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_turned_away_request_is_closed_even_if_the_first_write_fails(lane: Lane) -> None:
    ids = [rid for n in range(40) if partition_for(rid := request_id(n), PARTITIONS) == 0][:2]
    world = World(RouterConfig(max_open=1, max_batch_open=1)).put(request(ids[0], lane=lane))
    record = Received(REQUESTS.name, 0, 9, 0, request(ids[1], lane=lane), None)
    (refused,) = world.routers[0].read(record, world.now_us, world.now_us)
    assert isinstance(refused.event, Closed)
    world.until(2 * DAY_MS)
    assert world.endings(ids[1]) == ["expired"]


def test_turned_away_request_that_was_denied_meanwhile_is_denied() -> None:
    ids = [rid for n in range(40) if partition_for(rid := request_id(n), PARTITIONS) == 0][:2]
    world = World(RouterConfig(max_open=1)).put(request(ids[0]))
    record = Received(REQUESTS.name, 0, 9, 0, request(ids[1]), None)
    late = world.routers[0].read(record, world.now_us, world.now_us)
    world.append(STREAMS, verdict("deny", ids[1]))
    world.write(late)
    assert world.endings(ids[1]) == ["failed", "denied"]


def test_router_that_lags_cannot_end_what_another_attempt_answers() -> None:
    """A ``Closed`` by a router that had not read a cutover does not end the request.

    This happens with two routers during a rebalance.
    """
    policy = RouterConfig(fallback="vertex")
    world = World(policy).put(request(), started(), failed())
    stale = Closed(
        **about(RID, 95), outcome="failed", cause="attempts_failed", seen_attempts=1, reason="unavailable: refused"
    )
    world.put(stale)
    assert world.endings() == ["failed"]
    world.put(started(at_ms=100, attempt=2, run="r2"), chunk(0, at_ms=110, attempt=2, run="r2"))
    world.put(finished(0, at_ms=120, attempt=2, run="r2"))
    assert world.endings() == ["failed", "completed"]
    assert world.until(2_000).account().outcome == "completed"


@pytest.mark.parametrize(("at_ms", "outcome"), [(800, "failed"), (1_000, "expired"), (1_003, "expired")])
def test_worker_out_of_request_time_does_not_outrun_the_deadline(at_ms: int, outcome: str) -> None:
    """If a worker reports a timeout before the total deadline, the request is closed as failed.

    If the report comes at the deadline or later, the request is closed as expired, even if the router's timer for the
    deadline has not fired yet.
    """
    world = World().put(request(deadlines=Deadlines(total_ms=1_000)), started())
    event = failed(at_ms=at_ms, error_class="timeout", retryable=False)
    world.now_us = T0 + at_ms * MS
    world.append(STREAMS, event)
    assert world.until(1_100).endings() == [outcome]


def test_limits_of_interactive_deadlines_do_not_bound_batch_requests() -> None:
    world = World(RouterConfig(total_max_ms=60_000))
    asked = request(lane="batch", deadlines=Deadlines(total_ms=600_000))
    assert world.put(asked, started()).until(599_999).endings() == []
    assert world.until(600_000).endings() == ["expired"]
