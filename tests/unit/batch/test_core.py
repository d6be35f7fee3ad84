"""Test that each line gets one result and no request is written twice, no matter when a batch service is killed."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.batches import BatchControl, BatchCreated, BatchProgress
from schemas.stream import Closed, Failed
from schemas.topics import REQUESTS_BATCH, STREAMS
from services.batch.core import CANCEL_GRACE_US, RETRY_US, BatchConfig, BatchCore
from services.batch.job import CHECKPOINT_US, JobCheckpoint, RecordResult
from services.bus import partition_for
from services.jobs.ids import line_request_id
from services.jobs.job_state import JobState
from services.jobs.result_lines import LineAnswer, LineError
from tests.unit.batch.world import BATCH_ID, PARTITIONS, World

LINE_TIMEOUT_US = BatchConfig(partitions=1).line_timeout_us
ABOUT = {"batch_id": BATCH_ID, "tenant": "t", "at": 0, "source": "test"}


class BatchMachine(RuleBasedStateMachine):
    """A Hypothesis state machine: a job runs, and its batch service may be killed and replaced after any step."""

    @initialize(lines=st.integers(1, 12), window=st.integers(1, 5), attempts=st.integers(1, 3), seed=st.integers())
    def start(self, lines, window, attempts, seed):
        self.world = World(lines, window, attempts, random.Random(seed))
        self.window = window

    @rule()
    def step(self):
        self.world.step()

    @rule(times=st.integers(1, 6))
    def perform(self, times):
        for _ in range(times):
            self.world.perform()

    @rule(times=st.integers(1, 6))
    def read(self, times):
        job = self.world.core.job(BATCH_ID)
        for _ in range(times):
            if job.stage != "starting":
                self.world.read()

    @rule(well=st.booleans())
    def answer(self, well):
        self.world.answer(well=well)

    @rule()
    def kill(self):
        if self.world.finished is None:
            self.world.begin()

    @invariant()
    def no_request_is_written_twice(self):
        if hasattr(self, "world"):
            assert len(self.world.submitted) == len(set(self.world.submitted))

    @invariant()
    def no_more_are_open_than_the_window(self):
        if hasattr(self, "world"):
            assert len(self.world.core.job(BATCH_ID).open) <= self.window

    @invariant()
    def no_durable_result_is_there_twice(self):
        if hasattr(self, "world") and self.world.state.progress is not None:
            places = [place for place, _ in self.world.durable()]
            assert len(places) == len(set(places))

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self.world.run_to_the_end()
        found = dict(self.world.durable())
        assert sorted(place for place, _ in self.world.durable()) == list(range(self.world.lines))
        for place, result in found.items():
            if isinstance(result, LineAnswer):
                assert result.text.endswith(f"{place:08x}")
            else:
                assert result.code != "expired", "it was given up although its answer is on the log"
        totals = self.world.state.progress.totals
        assert totals.completed == sum(isinstance(result, LineAnswer) for result in found.values())
        assert totals.completed + totals.failed == self.world.lines
        assert totals.retried == len(self.world.submitted) - self.world.lines


TestBatchMachine = BatchMachine.TestCase


def test_a_line_fails_after_so_many_attempts():
    world = World(1, 1, 3, random.Random(0))
    for _ in range(30):
        world.step()
        while world.effects:
            world.perform()
        world.answer(well=False)
        while world.read():
            pass
    assert [int(each[26:28], 16) for each in world.submitted] == [1, 2, 3]
    assert [(place, result.code) for place, result in world.durable()] == [(0, "unavailable")]
    assert world.finished == "completed"


def test_no_retry_of_a_line_is_later_than_five_minutes():
    world = World(1, 1, 100, random.Random(0))
    waits = []
    while len(waits) < 15:
        before = world.now
        while len(world.submitted) == len(waits):
            world.now += 1_000_000
            world.step()
            while world.effects:
                world.perform()
        waits.append(world.now - before)
        world.answer(well=len(waits) == 15)
        while world.read():
            pass
    assert 15_000_000 < waits[5] < 300_000_000 <= max(waits) < 310_000_000
    world.run_to_the_end()


def test_what_was_open_at_a_takeover_has_its_whole_time_from_then_on():
    world = World(3, 3, 1, random.Random(0))
    for _ in range(3):
        world.step()
        while world.effects:
            world.perform()
        while world.read():
            pass
    world.begin()
    while world.effects:
        world.perform()
    taken_over = world.now
    world.now = taken_over + LINE_TIMEOUT_US - 10_000_000
    world.step()
    assert not any(isinstance(effect, RecordResult) for effect in world.effects)
    world.now = taken_over + LINE_TIMEOUT_US
    world.step()
    given_up = [effect.result.code for effect in world.effects if isinstance(effect, RecordResult)]
    assert given_up == ["expired"] * 3


def test_a_takeover_after_lost_records_reads_from_where_the_log_ends():
    progress = BatchProgress(
        **ABOUT, epoch=1, stream_offsets=(9,) * PARTITIONS, request_offsets=(7,) * PARTITIONS
    )  # fmt: skip
    state = JobState(created=BatchCreated(**ABOUT, input_file="file-a"), created_ms=0, progress=progress)
    positions = {STREAMS.name: [4] * PARTITIONS, REQUESTS_BATCH.name: [8] * PARTITIONS}
    [checkpoint] = BatchCore(BatchConfig(partitions=PARTITIONS)).begin(state, 3, 0, "part-2", positions)
    assert set(checkpoint.progress.stream_offsets) == {4}
    assert set(checkpoint.progress.request_offsets) == {7}


def test_a_cancelled_job_asks_the_workers_to_stop_and_ends():
    world = World(5, 2, 3, random.Random(0))
    for _ in range(3):
        world.step()
        while world.effects:
            world.perform()
    world.jobs.feed(BatchControl(**ABOUT, action="cancel"), 1)
    world.effects.extend(world.core.update(world.state, world.now, expired=False))
    while world.effects:
        world.perform()
    assert sorted(world.cancels) == sorted(world.submitted)
    world.answer(well=True)
    world.answer(well=False)
    while world.read():
        pass
    world.run_to_the_end()
    assert world.finished == "cancelled"
    results = [result for _, result in world.durable()]
    assert [type(result) for result in results].count(LineAnswer) == 1
    assert [result.code for result in results if isinstance(result, LineError)] == ["batch_cancelled"]
    assert len(world.submitted) == 2


def played(world, rounds=1, **answer):
    """Run the job for ``rounds`` rounds. In each round, perform all effects and read all records. Return the world.

    With ``well=True``, also complete one open request in each round. With ``well=False``, let one open request fail
    in each round. Without ``well``, answer no request.
    """
    for _ in range(rounds):
        while world.effects:  # the job begins
            world.perform()
        world.step()
        while world.effects:
            world.perform()
        if answer:
            world.answer(**answer)
        while world.read():
            pass
    return world


def at(world, now_us):
    world.now = now_us
    world.effects.extend(world.core.step(now_us, world.positions))
    while world.effects:
        world.perform()
    return [int(each[26:28], 16) for each in world.submitted]


def test_each_retry_waits_twice_as_long_and_is_counted():
    world = played(World(1, 1, 3, random.Random(0)))
    for number in (1, 2):
        world.answer(well=False)
        while world.read():
            pass
        due_us = world.now + RETRY_US * number
        assert at(world, due_us - 1) == [*range(1, number + 1)]
        assert at(world, due_us) == [*range(1, number + 2)]
        assert world.core.job(BATCH_ID).totals.retried == number


def test_a_line_that_waits_for_its_retry_is_not_given_up():
    world = World(1, 1, 2, random.Random(0))
    played(world, well=False)
    world.core.job(BATCH_ID).open[0].retry_us = world.now + 2 * LINE_TIMEOUT_US
    at(world, world.now + LINE_TIMEOUT_US)
    assert list(world.core.job(BATCH_ID).open) == [0]


def test_a_retry_that_nobody_closes_is_given_up():
    world = played(World(1, 1, 2, random.Random(0)), well=False)
    assert at(world, world.now + RETRY_US) == [1, 2]
    at(world, world.now + LINE_TIMEOUT_US - 1)
    assert list(world.core.job(BATCH_ID).open) == [0]
    at(world, world.now + CHECKPOINT_US)
    assert [(place, result.code) for place, result in world.durable()] == [(0, "expired")]


def test_a_cancelled_job_asks_the_workers_to_stop_a_retry():
    world = played(World(1, 1, 2, random.Random(0)), well=False)
    at(world, world.now + RETRY_US)
    world.jobs.feed(BatchControl(**ABOUT, action="cancel"), 1)
    world.effects.extend(world.core.update(world.state, world.now, expired=False))
    while world.effects:
        world.perform()
    assert world.cancels == world.submitted[1:]


def test_a_request_that_the_broker_refuses_is_the_result_of_its_line():
    world = played(World(2, 2, 2, random.Random(0)))
    [done] = world.core.not_written(BATCH_ID, 0, 1, "too large")
    assert (done.place, done.attempt, done.result) == (0, 1, LineError(code="rejected", message="too large"))
    assert world.core.not_written(BATCH_ID, 0, 1, "too large") == [], "the line is done"


def test_a_job_in_which_nothing_happens_writes_no_progress():
    world = played(World(2, 1, 1, random.Random(0)), 3)
    before = world.state.progress
    for _ in range(3):
        at(world, world.now + 2 * CHECKPOINT_US)
    assert world.state.progress is before


def test_a_late_event_of_an_earlier_attempt_holds_up_no_line():
    world = played(World(8, 8, 2, random.Random(0)))
    place = next(
        place
        for place in range(8)
        if len({partition_for(line_request_id(BATCH_ID, place, n), PARTITIONS) for n in (1, 2)}) == 2
    )
    first, last = line_request_id(BATCH_ID, place, 1), line_request_id(BATCH_ID, place, 2)
    about = {"tenant": "t", "at": 0, "source": "test"}
    late = Failed(request_id=first, **about, attempt=1, run="r", error_class="cancelled", message="", retryable=False)
    world._write(STREAMS.name, Closed(request_id=first, **about, outcome="failed", cause="attempts_failed"))
    world.closed.add(first)
    while world.read():
        pass
    at(world, world.now + RETRY_US)
    assert last in world.submitted
    for _ in range(2):
        world.begin()
        while world.effects:
            world.perform()
        while world.state.progress.totals.completed < 7 and any(
            each not in world.closed and each != last for each in world.submitted
        ):
            world.closed.add(last)  # it is answered last
            world.answer(well=True)
            world.closed.discard(last)
            while world.read():
                pass
            at(world, world.now + CHECKPOINT_US)
        world._write(STREAMS.name, late)
    world.run_to_the_end()
    assert dict(world.durable())[place].text == f"answer to {last}"


def test_a_paused_job_submits_nothing_until_it_is_resumed():
    world = played(World(4, 2, 2, random.Random(0)), well=True)
    before = len(world.submitted)
    for action, more in (("pause", False), ("resume", True)):
        world.jobs.feed(BatchControl(**ABOUT, action=action), 1)
        world.effects.extend(world.core.update(world.state, world.now, expired=False))
        played(world, 3, well=False)
        assert (len(world.submitted) > before) == more


@pytest.mark.parametrize(("control", "ending"), [("cancel", "cancelled"), (None, "expired")])
def test_a_job_that_ends_early_gives_up_what_waits(control, ending):
    world = played(World(3, 2, 3, random.Random(0)), well=False)
    if control is not None:
        world.jobs.feed(BatchControl(**ABOUT, action=control), 1)
    for _ in range(2):  # a repeated event does not postpone the end
        world.effects.extend(world.core.update(world.state, world.now, expired=control is None))
        while world.effects:
            world.perform()
    ended_us = world.now
    at(world, ended_us + CANCEL_GRACE_US - 1)
    world.core.update(world.state, world.now, expired=control is None)
    assert world.finished is None
    at(world, ended_us + CANCEL_GRACE_US)
    assert world.finished == ending
    assert [result.code for _, result in world.durable()] == [f"batch_{ending}"]
    assert ("expired" in world.durable()[0][1].message) == (ending == "expired")
    assert world.cancels == [each for each in world.submitted if each not in world.closed]


def test_a_job_that_is_cancelled_at_a_takeover_asks_the_workers_to_stop():
    world = played(World(3, 2, 1, random.Random(0)), 2)
    world.begin()
    world.jobs.feed(BatchControl(**ABOUT, action="cancel"), 1)
    assert world.core.update(world.state, world.now, expired=False) == []
    while world.effects:
        world.perform()
    assert sorted(world.cancels) == sorted(world.submitted)


def test_an_answer_that_was_half_read_at_a_takeover_is_read_again():
    world = played(World(2, 2, 1, random.Random(0)), well=True)
    world.answer(well=True)
    for _ in range(2):
        assert world.read()
    world.now += CHECKPOINT_US
    at(world, world.now)
    assert world.state.progress.totals.completed == 1
    world.begin()
    while world.effects:
        world.perform()
    assert world.core.job(BATCH_ID).totals.completed == 2


@pytest.mark.parametrize("noted", [True, False])
def test_what_never_reached_the_log_is_submitted_at_a_takeover(noted):
    world = World(3, 3, 1, random.Random(0))
    world.perform()
    world.step()
    kept = [effect for effect in world.effects if isinstance(effect, JobCheckpoint) == noted]
    world.effects = deque(kept if noted else kept[-1:])
    while world.effects:
        world.perform()
    before = len(world.submitted)
    world.begin()
    while world.effects:
        world.perform()
    assert (before, len(world.submitted), len(set(world.submitted))) == (0 if noted else 1, 3, 3)


def test_a_crowded_request_halves_the_window_and_another_widens_it():
    world = played(World(16, 8, 1, random.Random(0)))
    job = world.core.job(BATCH_ID)
    crowded, well = world.submitted[0], world.submitted[1]
    closing = {"tenant": "t", "at": 0, "source": "test", "outcome": "failed"}
    world._write(STREAMS.name, Closed(request_id=crowded, **closing, cause="no_first_token"))
    while world.read():
        pass
    assert job.window == 4
    world._write(STREAMS.name, Closed(request_id=well, **closing, cause="attempts_failed"))
    while world.read():
        pass
    assert job.window == 5


def test_retries_that_no_checkpoint_has_seen_are_counted_at_a_takeover():
    world = played(World(2, 2, 3, random.Random(0)))
    checkpoint = world.state.progress
    for _ in range(2):
        world.answer(well=False)
    while world.read():
        pass
    world.now += RETRY_US
    world.step()
    world.effects = deque(effect for effect in world.effects if not isinstance(effect, JobCheckpoint))
    while world.effects:
        world.perform()
    assert len(world.submitted) == 4
    assert world.state.progress is checkpoint
    world.begin()
    while world.effects:
        world.perform()
    assert len(world.submitted) == 4
    assert world.core.job(BATCH_ID).totals.retried == 2


def test_a_service_that_was_replaced_changes_nothing():
    world = World(2, 2, 1, random.Random(0))
    world.perform()
    stale = world.state.progress
    world.begin()
    world.perform()
    newest = world.state.progress
    assert newest.epoch == stale.epoch + 1
    assert world.jobs.feed(BatchProgress(**ABOUT, epoch=stale.epoch), 2) is None
    assert world.jobs.feed(BatchProgress(**ABOUT, epoch=newest.epoch), 2) is None  # of another source
    assert world.state.progress is newest


@given(st.lists(st.sampled_from(["in time", "late"]), max_size=200), st.integers(1, 1_000))
def test_the_window_stays_in_its_bounds(answers, most):
    world = World(1, most, 1, random.Random(0))
    job = world.core.job(BATCH_ID)
    for number, answer in enumerate(answers, start=1):
        job.adapt_window(crowded=answer == "late", submitted_us=number, now_us=number)
        assert 1 <= job.window <= most
