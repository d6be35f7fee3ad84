"""Test the metrics of jobs: jobs by status, lines left, age, and the share of a job's time limit that has passed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress, BatchTotals
from services.batch.figures import UNFINISHED, job_figures, set_gauges
from services.batch.job import JobRun
from services.batch.line_state import LineState
from services.jobs.job_state import Jobs
from services.runtime.metrics import BATCH_JOBS, BATCH_LINES_LEFT, BATCH_OLDEST_SECONDS, BATCH_TIME_USED

HOUR_MS = 3_600_000


def about(number):
    return {"batch_id": f"batch_{number:032x}", "tenant": "t", "at": 0, "source": "batch/test"}


def created(number, **given):
    return BatchCreated(**about(number), input_file="file-a", **given)


def progress(number, *, lines, completed=0, failed=0):
    totals = BatchTotals(lines=lines, completed=completed, failed=failed)
    return BatchProgress(**about(number), epoch=1, next_line=0, totals=totals)


def figures(jobs, runs=(), now_ms=0):
    return job_figures(jobs.active(), runs, now_ms)


def test_without_a_job_everything_is_zero():
    found = figures(Jobs(), now_ms=HOUR_MS)
    assert found.by_status == dict.fromkeys(UNFINISHED, 0)
    assert (found.lines_left, found.oldest_s, found.time_used, found.lines_open, found.window) == (0, 0, 0, 0, 0)


def test_jobs_of_every_status_are_counted_until_they_end():
    jobs = Jobs()
    for number in range(5):
        jobs.feed(created(number), 0)
    for number in (1, 2, 3, 4):
        jobs.feed(progress(number, lines=10, completed=10 if number == 3 else 4, failed=0), 0)
    jobs.feed(BatchControl(**about(2), action="pause"), 0)
    jobs.feed(BatchControl(**about(4), action="cancel"), 0)
    found = figures(jobs)
    assert found.by_status == dict.fromkeys(UNFINISHED, 1)
    assert found.lines_left == 6 + 6 + 0 + 6
    jobs.feed(BatchFinished(**about(4), outcome="cancelled"), 0)
    assert figures(jobs).by_status["cancelling"] == 0


def test_the_oldest_job_need_not_be_the_first_to_expire():
    jobs = Jobs()
    jobs.feed(created(1, completion_ms=24 * HOUR_MS), 0)
    jobs.feed(created(2, completion_ms=HOUR_MS), HOUR_MS)
    found = figures(jobs, now_ms=HOUR_MS + HOUR_MS // 2)
    assert found.oldest_s == 5_400
    assert found.time_used == 0.5


@given(now_ms=st.integers(-HOUR_MS, 10**13), completed=st.integers(0, 20), failed=st.integers(0, 20))
def test_no_figure_is_negative_whatever_the_clocks_say(now_ms, completed, failed):
    jobs = Jobs()
    jobs.feed(created(1), 0)
    jobs.feed(progress(1, lines=10, completed=completed, failed=failed), 0)
    found = figures(jobs, now_ms=now_ms)
    assert min(found.lines_left, found.oldest_s, found.time_used) >= 0


def test_only_jobs_that_submit_have_a_window():
    runs = [JobRun(created=created(n), good=10, bad=0, window=32.5) for n in range(3)]
    runs[0].open = {0: LineState(), 1: LineState()}
    runs[1].paused = True
    runs[2].ending = "cancelled"
    runs[2].open = {5: LineState()}
    found = figures(Jobs(), runs)
    assert (found.lines_open, found.window) == (3, 32)


def test_the_gauges_show_the_figures():
    found = replace(figures(Jobs()), by_status={"in_progress": 2}, lines_left=7, oldest_s=1.5, time_used=0.25)
    set_gauges(found)
    shown = (BATCH_JOBS.labels("in_progress"), BATCH_LINES_LEFT, BATCH_OLDEST_SECONDS, BATCH_TIME_USED)
    assert [gauge.collect()[0].samples[0].value for gauge in shown[1:]] == [7, 1.5, 0.25]
    assert shown[0]._value.get() == 2
