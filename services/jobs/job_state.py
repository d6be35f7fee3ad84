"""Compute the state of each job from the events on ``railbus.batches``."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from schemas.base import AnyEvent
from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress, BatchTotals

MOST_FINISHED: Final = 10_000
"""Maximum number of finished jobs that are kept. The job that finished first is dropped first."""

JobStatus = Literal[
    "validating", "failed", "in_progress", "paused", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of one job. Times are Kafka timestamps, in milliseconds since the epoch.

    Attributes:
        created: The event that submitted the job.
        created_ms: When the job was submitted.
        progress: The newest valid progress event; None if there is none.
        began_ms: When the first progress event was written; None before that.
        cancelled_ms: When a user cancelled the job; None if nobody has.
        finished: The event that ended the job; None if the job has not ended.
        finished_ms: When the job ended; None if it has not ended.
    """

    created: BatchCreated
    created_ms: int
    progress: BatchProgress | None = None
    began_ms: int | None = None
    paused: bool = False
    cancelled_ms: int | None = None
    finished: BatchFinished | None = None
    finished_ms: int | None = None

    @property
    def batch_id(self) -> str:
        return self.created.batch_id

    @property
    def totals(self) -> BatchTotals:
        if self.finished is not None:
            return self.finished.totals
        return BatchTotals() if self.progress is None else self.progress.totals

    @property
    def expires_ms(self) -> int:
        return self.created_ms + self.created.completion_ms

    @property
    def status(self) -> JobStatus:
        if self.finished is not None:
            return self.finished.outcome
        if self.cancelled_ms is not None:
            return "cancelling"
        if self.progress is None or not self.progress.totals.lines:
            return "validating"
        totals = self.totals
        if totals.completed + totals.failed >= totals.lines:
            return "finalizing"
        return "paused" if self.paused else "in_progress"


class Jobs:
    """The states of all jobs. Of the finished jobs, only the newest ``MOST_FINISHED`` are kept."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] = {}
        self._finished: dict[str, None] = {}  # ids of finished jobs, in the order in which they finished

    def feed(self, event: AnyEvent, log_ms: int) -> JobState | None:
        """Apply the next event of ``railbus.batches``. Return the new state of its job; None if no job has changed.

        ``log_ms`` is the event's Kafka timestamp, in milliseconds since the epoch.
        """
        if isinstance(event, BatchCreated):
            if event.batch_id in self._jobs:
                return None
            changed = JobState(created=event, created_ms=log_ms)
        elif isinstance(event, BatchControl | BatchProgress | BatchFinished):
            job = self._jobs.get(event.batch_id)
            if job is None or job.finished is not None:
                return None
            found = _changed(job, event, log_ms)
            if found is None:
                return None
            changed = found
        else:
            return None
        self._jobs[event.batch_id] = changed
        if changed.finished is not None:
            self._finished[event.batch_id] = None
            while len(self._finished) > MOST_FINISHED:
                oldest = next(iter(self._finished))
                del self._finished[oldest], self._jobs[oldest]
        return changed

    def get(self, batch_id: str) -> JobState | None:
        return self._jobs.get(batch_id)

    def active(self) -> Iterator[JobState]:
        """Return the unfinished jobs, oldest first."""
        return (job for job in tuple(self._jobs.values()) if job.finished is None)

    def of_tenant(self, tenant: str | None) -> list[JobState]:
        """Return the jobs of a tenant, newest first. If ``tenant`` is None, return the jobs of all tenants."""
        return [job for job in reversed(self._jobs.values()) if tenant is None or job.created.tenant == tenant]


def _changed(job: JobState, event: BatchControl | BatchProgress | BatchFinished, log_ms: int) -> JobState | None:
    match event:
        case BatchControl(action="cancel"):
            return None if job.cancelled_ms is not None else replace(job, cancelled_ms=log_ms)
        case BatchControl():
            return replace(job, paused=event.action == "pause")
        case BatchProgress():
            if not holds(event, job.progress):
                return None
            return replace(job, progress=event, began_ms=log_ms if job.began_ms is None else job.began_ms)
        case BatchFinished():
            return replace(job, finished=event, finished_ms=log_ms)


def holds(event: BatchProgress, newest: BatchProgress | None) -> bool:
    """Return whether a progress event is valid. Events of a batch service that has lost the job are invalid.

    ``newest`` is the newest valid progress event of the job; None if there is none. A service that takes over the job
    raises the epoch. So a valid event has a higher epoch than ``newest``, or the same epoch and the same source.
    """
    if newest is None or event.epoch > newest.epoch:
        return True
    return event.epoch == newest.epoch and event.source == newest.source
