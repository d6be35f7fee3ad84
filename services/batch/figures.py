"""Compute the metrics of unfinished jobs, and set their gauges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from services.batch.job import JobRun
from services.jobs.job_state import JobState, JobStatus
from services.runtime.metrics import (
    BATCH_JOBS,
    BATCH_LINES_LEFT,
    BATCH_LINES_OPEN,
    BATCH_OLDEST_SECONDS,
    BATCH_TIME_USED,
    BATCH_WINDOW,
)

UNFINISHED: Final[tuple[JobStatus, ...]] = ("validating", "in_progress", "paused", "finalizing", "cancelling")
"""Statuses of jobs that have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Metrics of all unfinished jobs. ``lines_open`` and ``window`` count only the jobs that this service runs.

    Attributes:
        lines_left: Number of lines without a result.
        time_used: A job's age divided by its time limit. The largest value of all jobs counts.
        lines_open: Number of submitted lines without a result.
        window: Sum of ``JobRun.window``, the maximum number of open lines of a job. Paused, cancelled and expired jobs
            do not count.
    """

    by_status: Mapping[JobStatus, int]
    lines_left: int
    oldest_s: float
    time_used: float
    lines_open: int
    window: int


def job_figures(unfinished: Iterable[JobState], running: Iterable[JobRun], now_ms: int) -> JobFigures:
    by_status, lines_left, oldest_s, time_used = dict.fromkeys(UNFINISHED, 0), 0, 0.0, 0.0
    for job in unfinished:
        by_status[job.status] += 1
        lines_left += max(0, job.totals.lines - job.totals.completed - job.totals.failed)
        age_ms = max(0, now_ms - job.created_ms)
        oldest_s = max(oldest_s, age_ms / 1_000)
        time_used = max(time_used, age_ms / job.created.completion_ms)
    runs = tuple(running)
    return JobFigures(
        by_status=by_status, lines_left=lines_left, oldest_s=oldest_s, time_used=time_used,
        lines_open=sum(len(run.open) for run in runs),
        window=sum(int(run.window) for run in runs if run.ending is None and not run.paused),
    )  # fmt: skip


def set_gauges(figures: JobFigures) -> None:
    for status, count in figures.by_status.items():
        BATCH_JOBS.labels(status).set(count)
    BATCH_LINES_LEFT.set(figures.lines_left)
    BATCH_OLDEST_SECONDS.set(figures.oldest_s)
    BATCH_TIME_USED.set(figures.time_used)
    BATCH_LINES_OPEN.set(figures.lines_open)
    BATCH_WINDOW.set(figures.window)
