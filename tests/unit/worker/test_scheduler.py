"""Test the scheduler: slots, deadlines, cancellations, and the order in which requests start."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.side_events import Cancel
from services.runtime.classes.service_classes import BATCH_BOUNDS
from services.worker.engine import EngineError
from services.worker.scheduler import (
    CANCEL_MEMORY_US,
    STOPPING,
    RecentKeys,
    RecordPlace,
    Refusal,
    Scheduler,
    Ticket,
    most_batch,
)
from tests.support.examples import examples
from tests.unit.worker.samples import T0_US, request, request_id, ticket


def resolve(model):
    if model in {"default", "small"}:
        return "small"
    raise EngineError("bad_request", "this model is not served here; served is 'small'", retryable=False, param="model")


def scheduler(slots=2, output_check="on", **changes):
    return Scheduler(slots=slots, output_check=output_check, resolve=resolve, **changes)


def cancel(number, attempt=None, reason="client_gone"):
    return Cancel(request_id=request_id(number), tenant="acme", at=T0_US, source="test", attempt=attempt, reason=reason)


def test_requests_start_in_order_while_slots_are_free():
    it = scheduler(slots=2)
    tickets = [ticket(n) for n in range(3)]
    assert [it.accept(each, T0_US) for each in tickets] == ["waits"] * 3
    assert it.next(T0_US) == (tickets[0], None)
    assert it.next(T0_US) == (tickets[1], None)
    assert it.next(T0_US) is None
    assert (it.running, it.waiting) == (2, 1)
    it.release(tickets[0])
    assert it.next(T0_US) == (tickets[2], None)


def test_a_repetition_is_known_and_another_attempt_is_not():
    it = scheduler()
    it.accept(ticket(1), T0_US)
    assert it.accept(ticket(1, run="again"), T0_US) == "known"
    assert it.accept(ticket(1, run="next", attempt=2), T0_US) == "waits"


def test_a_record_read_again_is_committed_after_its_first_event():
    it, place = scheduler(slots=2), RecordPlace("railbus.requests", 0, 7)
    first, again = replace(ticket(1), place=place), replace(ticket(1, run="again"), place=place)
    copy = replace(ticket(1, run="copy"), place=place._replace(offset=8))
    assert it.accept(first, T0_US) == "waits"
    assert it.accept(again, T0_US) == "unacknowledged", "it waits"
    assert (it.next(T0_US), it.next(T0_US)) == ((first, None), None)
    assert it.accept(again, T0_US) == "unacknowledged", "it runs, and its first event may be lost"
    assert it.accept(copy, T0_US) == "unacknowledged"
    assert it.acknowledged(first) == [place, copy.place]
    assert it.accept(again, T0_US) == it.accept(copy, T0_US) == "known"


def test_a_record_at_another_offset_now_is_not_committed_before_it_starts():
    # The broker lost its newest records. The other record has the offset of the first now.
    it, place = scheduler(slots=1), RecordPlace("railbus.requests", 0, 100)
    first, other = replace(ticket(1), place=place), replace(ticket(2), place=place)
    again = replace(ticket(1, run="again"), place=place._replace(offset=101))
    it.accept(first, T0_US)
    assert it.accept(other, T0_US) == "waits"
    assert it.accept(again, T0_US) == "unacknowledged"
    assert it.next(T0_US) == (first, None)
    assert it.acknowledged(first) == [again.place], "the record at 100 is the other's, which waits"
    assert it.hand_back(lambda _: True) == [other]
    assert it.accept(other, T0_US) == "waits"


def test_an_unknown_model_is_refused_by_name():
    refusal = scheduler().accept(ticket(model="large"), T0_US)
    message = "this model is not served here; served is 'small'"
    assert refusal == Refusal("bad_request", message, retryable=False, param="model")


@pytest.mark.parametrize("mode", ["gated", "windowed"])
def test_checked_delivery_without_a_check_fails_closed(mode):
    refusal = scheduler(output_check="off").accept(ticket(mode=mode), T0_US)
    assert isinstance(refusal, Refusal)
    assert (refusal.error_class, refusal.retryable) == ("bad_request", False)
    assert f"delivery '{mode}'" in refusal.message
    assert "RAILBUS_OUTPUT_CHECK=off" in refusal.message
    assert scheduler(output_check="on").accept(ticket(mode=mode), T0_US) == "waits"
    assert scheduler(output_check="off").accept(ticket(mode="optimistic"), T0_US) == "waits"


def test_what_waited_beyond_its_deadline_is_not_run():
    it = scheduler()
    late = ticket(total_ms=100)
    it.accept(late, T0_US)
    assert it.next(T0_US + 99_999) == (late, None)
    it.release(late)
    late = ticket(1, total_ms=100)
    it.accept(late, T0_US)
    picked = it.next(T0_US + 100_000)
    assert picked == (late, Refusal("timeout", "the deadline of 100 ms passed in the queue", retryable=False))
    assert it.running == 0


def test_a_cancel_drops_what_waits_and_stops_what_runs():
    it = scheduler(slots=1)
    runs, waits = ticket(1), ticket(1, run="other", attempt=2)
    it.accept(runs, T0_US)
    it.accept(waits, T0_US)
    it.next(T0_US)
    dropped, stopped = it.cancel(cancel(1), T0_US)
    assert (dropped, stopped) == ([waits], [runs])
    assert runs.stopped == waits.stopped == Refusal("cancelled", "cancelled: client_gone", retryable=False)
    assert it.waiting == 0
    assert it.running == 1, "it holds its slot until it ended"
    assert it.cancel(cancel(1), T0_US) == ([], []), "said once"


def test_a_cancel_of_one_attempt_leaves_the_others():
    it = scheduler(slots=1)
    first, second = ticket(1), ticket(1, run="other", attempt=2)
    it.accept(first, T0_US)
    it.accept(second, T0_US)
    it.next(T0_US)
    assert it.cancel(cancel(1, attempt=2), T0_US) == ([second], [])


def test_an_execution_that_is_over_cannot_be_stopped():
    it = scheduler()
    done = ticket(1)
    it.accept(done, T0_US)
    it.next(T0_US)
    done.over = True
    assert it.cancel(cancel(1), T0_US) == ([], [])
    assert it.stop_all(STOPPING) == []
    assert done.stopped is None


@pytest.mark.parametrize("attempt", [None, 1])
def test_a_cancel_that_comes_first_is_remembered_for_a_while(attempt):
    it = scheduler()
    it.cancel(cancel(1, attempt=attempt), T0_US)
    it.cancel(cancel(2, attempt=attempt), T0_US)
    refusal = it.accept(ticket(1), T0_US + CANCEL_MEMORY_US - 1)
    assert isinstance(refusal, Refusal)
    assert refusal.error_class == "cancelled"
    assert it.accept(ticket(2), T0_US + CANCEL_MEMORY_US) == "waits"


def test_a_cancelled_batch_request_is_not_run_however_late_it_is_read():
    it = scheduler()
    longest_us = BATCH_BOUNDS.total_ms[1] * 1_000
    it.cancel(cancel(1), T0_US)
    refusal = it.accept(ticket(1, batch=True), T0_US + longest_us - 1)
    assert isinstance(refusal, Refusal)
    assert refusal.error_class == "cancelled"


def test_the_end_hands_back_what_waits_and_stops_what_runs():
    it = scheduler(slots=1)
    tickets = [ticket(n, batch=n == 2) for n in range(3)]
    for each in tickets:
        it.accept(each, T0_US)
    it.next(T0_US)
    assert it.hand_back(lambda _: True) == tickets[1:]
    assert it.stop_all(STOPPING) == tickets[:1]
    assert [each.stopped for each in tickets] == [STOPPING, None, None]
    assert it.waiting == 0


def test_a_request_of_another_worker_is_dropped_and_taken_if_it_returns():
    it = scheduler(slots=1)
    tickets = [ticket(n) for n in range(3)]
    for each in tickets:
        it.accept(each, T0_US)
    it.next(T0_US)
    assert it.hand_back(lambda each: each in tickets[:2]) == [tickets[1]], "what runs is not handed back"
    assert it.waiting == 1
    assert it.accept(ticket(0, run="again"), T0_US) == "known"
    assert it.accept(ticket(1, run="again"), T0_US) == "waits"
    assert it.accept(ticket(2, run="again"), T0_US) == "known"


def test_a_stopping_worker_fails_so_that_the_router_tries_another():
    assert (STOPPING.error_class, STOPPING.retryable) == ("engine_dead", True)


def test_batch_waits_for_interactive_and_leaves_it_a_slot():
    it = scheduler(slots=3)
    batch = [ticket(n, batch=True) for n in range(3)]
    interactive = ticket(9)
    for each in (*batch, interactive):
        it.accept(each, T0_US)
    assert not it.batch_may_start
    assert it.next(T0_US) == (interactive, None)
    assert it.next(T0_US) == (batch[0], None)
    assert it.next(T0_US) is None, "the last slot is for the next interactive request"
    it.release(interactive)
    assert it.next(T0_US) == (batch[1], None)
    assert it.next(T0_US) is None


def test_a_batch_execution_that_ends_makes_room_for_the_next():
    it = scheduler(slots=8, batch_slots=2)
    batch = [ticket(n, batch=True) for n in range(4)]
    for each in batch:
        it.accept(each, T0_US)
    assert [it.next(T0_US) for _ in range(3)] == [(batch[0], None), (batch[1], None), None]
    it.release(batch[0])
    assert [it.next(T0_US) for _ in range(2)] == [(batch[2], None), None]


def test_a_refused_or_cancelled_request_is_unacknowledged_at_first():
    """Refused, cancelled and running requests are unacknowledged until ``acknowledged`` is called.

    Until then, the worker does not give up their partitions.
    """
    it = scheduler(slots=1)
    refused, runs, waits = ticket(0, model="large"), ticket(1), ticket(2)
    assert isinstance(it.accept(refused, T0_US), Refusal)
    for each in (runs, waits):
        it.accept(each, T0_US)
    it.next(T0_US)
    it.cancel(cancel(2), T0_US)
    assert set(it.unacknowledged) == {refused, runs, waits}
    for each in (refused, runs, waits):
        it.acknowledged(each)
    assert not it.unacknowledged


def test_batch_can_be_held_back_while_interactive_starts():
    """The caller can hold back batch requests while interactive requests still start.

    A worker does so while the batch consumer group has not confirmed that this worker still owns its partitions.
    """
    it = scheduler(slots=4)
    batch, interactive = ticket(0, batch=True), ticket(1)
    for each in (batch, interactive):
        it.accept(each, T0_US)
    assert it.next(T0_US, batch=False) == (interactive, None)
    assert it.next(T0_US, batch=False) is None
    assert it.next(T0_US) == (batch, None)


def test_one_slot_is_enough_for_batch():
    it = scheduler(slots=1)
    only = ticket(batch=True)
    it.accept(only, T0_US)
    assert it.batch_may_start
    assert it.next(T0_US) == (only, None)
    assert not it.batch_may_start


def test_batch_leaves_a_quarter_of_the_slots_for_interactive_bursts():
    it = scheduler(slots=8)
    for number in range(8):
        it.accept(ticket(number, batch=True), T0_US)
    begun = [it.next(T0_US) for _ in range(8)]
    assert sum(each is not None for each in begun) == 6
    burst = [ticket(20 + number) for number in range(3)]
    for each in burst:
        it.accept(each, T0_US)
    assert [it.next(T0_US) for _ in range(3)] == [(burst[0], None), (burst[1], None), None]


def test_an_engine_that_displaces_batch_delays_no_interactive_request():
    it = scheduler(slots=4, preempts=True)
    for number in range(4):
        it.accept(ticket(number, batch=True), T0_US)
    assert sum(it.next(T0_US) is not None for _ in range(4)) == 3
    burst = [ticket(20 + number) for number in range(5)]
    for each in burst:
        it.accept(each, T0_US)
    assert sum(it.next(T0_US) is not None for _ in range(5)) == 4, "as many as could run without batch"


def test_only_so_much_is_remembered():
    recent = RecentKeys(2)
    for number, key in enumerate(["a", "b", "a", "c"]):
        recent.add(key, number)
    assert "b" not in recent
    assert recent.at("a") == 2
    assert recent.at("b") is None


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = T0_US
        self.waiting = []
        self.running = []
        self.ended = []
        self.cancelled = set()
        self.known = set()

    @initialize(slots=st.integers(1, 5), batch_slots=st.integers(0, 5), preempts=st.booleans())
    def choose(self, slots, batch_slots, preempts):
        self.slots, self.batch_slots, self.preempts = slots, most_batch(slots, batch_slots), preempts
        self.scheduler = scheduler(slots=slots, batch_slots=batch_slots, preempts=preempts)

    @rule(
        number=st.integers(0, 5), attempt=st.integers(1, 2), batch=st.booleans(), total_ms=st.sampled_from([1, 60_000])
    )
    def arrive(self, number, attempt, batch, total_ms):
        it = ticket(number, run=f"{number}.{attempt}", batch=batch, attempt=attempt, total_ms=total_ms, at_us=self.now)
        answer = self.scheduler.accept(it, self.now)
        key = (it.request.request_id, attempt)
        if key in self.known:
            assert answer == "known"
        elif key in self.cancelled:
            assert answer.error_class == "cancelled"
        else:
            assert answer == "waits"
            self.waiting.append(it)
        self.known.add(key)

    @rule(number=st.integers(0, 5), attempt=st.sampled_from([None, 1, 2]))
    def cancel(self, number, attempt):
        dropped, stopped = self.scheduler.cancel(cancel(number, attempt), self.now)
        meant = {(request_id(number), each) for each in ((1, 2) if attempt is None else (attempt,))}
        self.cancelled |= meant
        for each in dropped:
            self.waiting.remove(each)
            self.ended.append(each)
        assert all(each in self.running for each in stopped)
        for each in (*dropped, *stopped):
            assert (each.request.request_id, each.request.attempt) in meant

    @rule(parity=st.integers(0, 1))
    def hand_back(self, parity):
        lost = {request_id(number) for number in range(6) if number % 2 == parity}
        meant = [each for each in self.waiting if each.request_id in lost]
        dropped = self.scheduler.hand_back(lambda each: each.request_id in lost)
        assert sorted(each.run for each in dropped) == sorted(each.run for each in meant)
        for each in dropped:
            self.waiting.remove(each)
            self.known.discard((each.request_id, each.attempt))

    @rule()
    def pick(self):
        picked = self.scheduler.next(self.now)
        interactive = [each for each in self.waiting if not each.batch]
        if picked is None:
            assert not self.waiting or self.full(batch=not interactive)
            return
        it, refusal = picked
        assert it is (interactive[0] if interactive else self.waiting[0])
        assert not self.full(batch=it.batch), "an interactive request that finds no slot holds batch back too"
        self.waiting.remove(it)
        (self.running if refusal is None else self.ended).append(it)
        assert (refusal is None) == (self.now < it.expires_us)

    def full(self, *, batch):
        of_batch = sum(each.batch for each in self.running)
        if batch:
            return of_batch >= self.batch_slots or len(self.running) >= max(1, self.slots - 1)
        return len(self.running) - (of_batch if self.preempts else 0) >= self.slots

    @rule(data=st.data())
    def end(self, data):
        if self.running:
            it = data.draw(st.sampled_from(self.running))
            self.running.remove(it)
            self.ended.append(it)
            self.scheduler.release(it)

    @rule(ms=st.integers(0, 10))
    def pass_time(self, ms):
        self.now += ms * 1_000

    @invariant()
    def counts_agree(self):
        assert self.scheduler.waiting == len(self.waiting)
        assert self.scheduler.running == len(self.running)
        of_batch = sum(each.batch for each in self.running)
        assert of_batch <= self.batch_slots
        assert len(self.running) - (of_batch if self.preempts else 0) <= self.slots

    @invariant()
    def nothing_cancelled_waits(self):
        for each in self.waiting:
            assert (each.request.request_id, each.request.attempt) not in self.cancelled
        for each in self.running:
            if (each.request.request_id, each.request.attempt) in self.cancelled:
                assert each.stopped is not None


SchedulerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
test_any_order = SchedulerMachine.TestCase


@pytest.mark.parametrize("off_us", [-61_000_000, 61_000_000])
def test_the_time_of_day_of_the_writer_moves_no_deadline(off_us):
    asked = request(total_ms=100, at_us=T0_US + off_us)
    late = Ticket(asked, "r", None, batch=False, accepted_us=T0_US, received_us=T0_US - 30_000)
    it = scheduler()
    it.accept(late, T0_US)
    assert it.next(T0_US + 69_999) == (late, None)
    assert late.expires_us == T0_US + 70_000
