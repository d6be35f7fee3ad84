"""Whatever is killed when: every line has one result, and no request is written twice."""

import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.batches import BatchControl, BatchProgress
from services.batch.core import BatchConfig
from services.batch.job import RecordResult
from services.jobs.result_lines import LineAnswer, LineError
from tests.unit.batch.world import BATCH_ID, NOW_US, World

LINE_TIMEOUT_US = BatchConfig(partitions=1).line_timeout_us
ABOUT = {"batch_id": BATCH_ID, "tenant": "t", "at": 0, "source": "test"}


class BatchMachine(RuleBasedStateMachine):
    """A job in a world in which a service is killed between any two steps."""

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
            assert len(self.world.core.job(BATCH_ID).open) <= self.window + 1 * (self.world.lives > 1) * 12

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
            elif self.world.now < NOW_US + LINE_TIMEOUT_US:
                assert result.code != "expired", "it was given up before its time"
        totals = self.world.state.progress.totals
        assert totals.completed == sum(isinstance(result, LineAnswer) for result in found.values())
        assert totals.completed + totals.failed == self.world.lines


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
