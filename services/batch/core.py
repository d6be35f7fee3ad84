"""The decisions of the batch service: which lines to submit, which are done, and which to retry. No I/O, no clock.

The service writes a ``BatchProgress`` event when it starts a job or takes it over. The job is *starting* until the
service has read this event back from the log. It is *recovering* until the service has read the job's earlier records.
Then it is *running*.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.batches import BatchProgress, OpenLine, ResultPart
from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import REQUESTS_BATCH, STREAMS
from services.batch.job import (
    CHECKPOINT_LINES,
    CHECKPOINT_US,
    LONGEST_CHECKPOINT_US,
    AskCancel,
    FinishJob,
    JobCheckpoint,
    JobRun,
    RecordResult,
    SubmitLine,
)
from services.batch.line_state import CROWDED_CAUSES, LineAttempt, LineState, decide
from services.bus import Received, UnreadableRecord, partition_for
from services.jobs.ids import JOB_CHARS, job_of, line_request_id, parse_request_id
from services.jobs.job_state import JobState
from services.jobs.result_lines import LineAnswer, LineError
from services.stream import AS_STARTED, Governance, Screen

RETRY_US: Final = 1_000_000
"""Time in microseconds before the first retry of a line. Before each further retry, the time is twice as long."""

LONGEST_RETRY_US: Final = 300_000_000
"""Maximum time in microseconds before a retry of a line."""

SLICE: Final = 64
"""Maximum number of new lines of one job that one step submits."""

CANCEL_GRACE_US: Final = 30_000_000
"""Maximum time in microseconds that a cancelled or expired job waits for its requests to be closed."""

Positions = Mapping[str, Sequence[int]]
"""The next offset to read of each partition, by topic name."""

Effect = SubmitLine | RecordResult | JobCheckpoint | FinishJob | AskCancel


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Settings that apply to every job.

    Attributes:
        partitions: Number of partitions of the request topic, and of the stream log.
        governance: The checks that an answer must have passed before it is accepted.
        line_timeout_us: Maximum time between the submission and the closing of a request.
        source: Name of this instance of the service in the events that it writes.
    """

    partitions: int
    governance: Governance = AS_STARTED
    line_timeout_us: int = 600_000_000
    source: str = "batch/test"


class BatchCore:
    """The jobs that one batch service runs.

    The methods return effects, such as ``SubmitLine``, which the caller must perform in order.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._jobs: dict[str, JobRun] = {}  # by the common prefix of their request ids

    @property
    def prefixes(self) -> frozenset[str]:
        """The request id prefixes of the jobs. All request ids of one job have the same prefix."""
        return frozenset(self._jobs)

    def jobs(self) -> Iterator[JobRun]:
        return iter(tuple(self._jobs.values()))

    def job(self, batch_id: str) -> JobRun | None:
        return self._jobs.get(job_of(batch_id))

    def begin(self, state: JobState, good: int, bad: int, part: str, positions: Positions) -> list[Effect]:
        """Start a job, or take it over from another service.

        ``good`` and ``bad`` are the numbers of valid and invalid lines. ``part`` is the name of the new part file.
        """
        before = state.progress
        job = JobRun(created=state.created, good=good, bad=bad, window=min(32, state.created.window_open))
        if before is not None:
            job.restore(before)
        job.stream_offsets = _earlier(job.stream_offsets, positions[STREAMS.name])
        job.request_offsets = _earlier(job.request_offsets, positions[REQUESTS_BATCH.name])
        job.epoch += 1
        job.parts = (*job.parts, ResultPart(name=part, length=0))
        for known in before.open if before is not None else ():
            job.open[known.line] = LineState()
            self._attempt(job, known.line, known.attempt, 0, positions=None).on_log = known.on_log
        self._jobs[job_of(job.batch_id)] = job
        return [JobCheckpoint(job.batch_id, self._progress(job, 0, None))]

    def confirmed(self, batch_id: str) -> None:
        """Change the state of a job from *starting* to *recovering*.

        Call this method when the progress event that ``begin`` returned is on the log. This event must still be the
        job's newest progress event.
        """
        if (job := self.job(batch_id)) is not None and job.stage == "starting":
            job.stage = "recovering"

    def drop(self, batch_id: str) -> None:
        self._jobs.pop(job_of(batch_id), None)

    def clear(self) -> None:
        self._jobs.clear()

    def update(self, state: JobState, now_us: int, expired: bool) -> list[Effect]:
        """Pause, resume or cancel a job as its ``state`` says, or expire it if ``expired`` is true."""
        job = self.job(state.batch_id)
        if job is None:
            return []
        job.paused = state.paused
        if job.ending is not None or not (state.cancelled_ms is not None or expired):
            return []
        job.ending, job.ending_us = ("expired" if state.cancelled_ms is None else "cancelled"), now_us
        return self._cancel_open(job) if job.stage == "running" else []

    def read(self, record: Received | UnreadableRecord, now_us: int) -> list[Effect]:
        """Apply a record of the topic ``railbus.requests.batch`` or ``railbus.streams``."""
        event = record.event if isinstance(record, Received) else None
        if not isinstance(record, Received) or not isinstance(event, Request | StreamEvent):
            return []
        job = self._jobs.get(event.request_id[:JOB_CHARS])
        if job is None or job.stage == "starting":
            return []
        _, place, number = parse_request_id(event.request_id)
        attempt = self._find(job, place, number, now_us)
        if attempt is None:
            return []
        if isinstance(event, Request):
            attempt.on_log = True
            return []
        attempt.on_log = True
        if not attempt.feed(event, record.offset, record.timestamp_ms) or job.stage != "running":
            return []
        return self._settle(job, place, now_us)

    def caught_up(self, batch_id: str, now_us: int) -> list[Effect]:
        """Change the state of a job from *recovering* to *running*. The caller must have read the log to its end."""
        job = self.job(batch_id)
        if job is None or job.stage != "recovering":
            return []
        job.stage = "running"
        for line in job.open.values():
            for attempt in line.attempts.values():
                attempt.submitted_us = attempt.submitted_us or now_us  # unknown, so the timeout starts now
        job.next_line = max([job.next_line, *(place + 1 for place in job.open)])
        effects: list[Effect] = []
        skipped = [*job.skipped(job.recovered_from)]
        for place in sorted(job.open):
            line = job.open[place]
            newest = line.attempts[line.newest]
            if not newest.on_log:  # never written, or not found: submit it with the same id
                effects.append(self._submit(job, place, line.newest, now_us, None))
            else:
                effects += self._settle(job, place, now_us)
        # Lines that were not submitted although a later line was.
        effects += [self._submit(job, place, 1, now_us, None) for place in skipped]
        if job.ending is not None:
            effects += self._cancel_open(job)
        return effects

    def not_written(self, batch_id: str, place: int, number: int, message: str) -> list[Effect]:
        """Record an error as the result of a line, because the broker has permanently refused its request."""
        job = self.job(batch_id)
        if job is None or place not in job.open:
            return []
        return self._done(job, place, number, LineError(code="rejected", message=message))

    def step(self, now_us: int, positions: Positions) -> list[Effect]:
        """Submit new lines and due retries, and write each job's progress.

        A line whose request took too long gets an error as its result.
        """
        effects: list[Effect] = []
        for job in self.jobs():
            if job.stage != "running":
                continue
            effects += self._time_out(job, now_us)
            if job.ending is None and not job.paused:
                effects += self._retry_due(job, now_us, positions)
                effects += self._submit_next(job, now_us, positions)
            if job.is_over(now_us, CANCEL_GRACE_US):
                job.stage = "over"
                effects.append(JobCheckpoint(job.batch_id, self._progress(job, now_us, positions)))
                effects.append(FinishJob(job.batch_id, job.ending or "completed"))
            elif job.changed and now_us >= job.checkpoint_us:
                effects.append(JobCheckpoint(job.batch_id, self._progress(job, now_us, positions)))
        return effects

    def _find(self, job: JobRun, place: int, number: int, now_us: int) -> LineAttempt | None:
        line = job.open.get(place)
        if line is not None and number in line.attempts:
            return line.attempts[number]
        if job.stage != "recovering" or place >= job.good or number < 1:
            return None
        if line is None:
            if place < job.recovered_from:
                return None  # the line was done before the newest checkpoint
            line = job.open[place] = LineState()
        elif number < min(line.attempts) and place < job.recovered_from:
            return None
        # While the job is recovering, an unknown attempt is created. The newest checkpoint has not counted it.
        job.totals_retried += number > 1
        return self._attempt(job, place, number, now_us, positions=None)

    def _attempt(
        self, job: JobRun, place: int, number: int, now_us: int, *, positions: Positions | None
    ) -> LineAttempt:
        request_id = line_request_id(job.batch_id, place, number)
        partition = partition_for(request_id, self._config.partitions)
        streams = job.stream_offsets if positions is None else positions[STREAMS.name]
        requests = job.request_offsets if positions is None else positions[REQUESTS_BATCH.name]
        attempt = LineAttempt(
            Screen(request_id, self._config.governance), streams[partition], requests[partition], now_us
        )
        job.open[place].attempts[number] = attempt
        return attempt

    def _submit(self, job: JobRun, place: int, number: int, now_us: int, positions: Positions | None) -> SubmitLine:
        line = job.open.setdefault(place, LineState())
        line.retry_us = None
        self._attempt(job, place, number, now_us, positions=positions)
        job.changed = True
        return SubmitLine(job.batch_id, place, number)

    def _submit_next(self, job: JobRun, now_us: int, positions: Positions) -> Iterator[Effect]:
        for _ in range(SLICE):
            if job.next_line >= job.good or len(job.open) >= int(job.window):
                return
            job.next_line += 1
            yield self._submit(job, job.next_line - 1, 1, now_us, positions)

    def _retry_due(self, job: JobRun, now_us: int, positions: Positions) -> Iterator[Effect]:
        for place in [place for place in job.waiting if (job.open[place].retry_us or 0) <= now_us]:
            job.waiting.discard(place)
            job.totals_retried += 1
            yield self._submit(job, place, job.open[place].newest + 1, now_us, positions)

    def _settle(self, job: JobRun, place: int, now_us: int) -> list[Effect]:
        line = job.open[place]
        decision, number, result = decide(line, job.created.line_attempts, ending=job.ending is not None)
        if decision == "open":
            return []
        attempt = line.attempts[number]
        crowded = attempt.closed is not None and attempt.closed.cause in CROWDED_CAUSES
        job.adapt_window(crowded=crowded, submitted_us=attempt.submitted_us, now_us=now_us)
        if decision == "retry":
            line.retry_us = now_us + min(RETRY_US * 2 ** (number - 1), LONGEST_RETRY_US)
            job.waiting.add(place)
            return []
        if result is None:
            return []
        return self._done(job, place, number, result)

    def _done(self, job: JobRun, place: int, number: int, result: LineAnswer | LineError) -> list[Effect]:
        if job.ending is not None and isinstance(result, LineError):
            what = "expired before this line was done" if job.ending == "expired" else "was cancelled"
            result = LineError(code=f"batch_{job.ending}", message=f"The batch {what}.")
        del job.open[place]
        job.waiting.discard(place)
        job.count(result)
        job.changed = True
        return [RecordResult(job.batch_id, place, number, result)]

    def _time_out(self, job: JobRun, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        if now_us < job.sweep_us:
            return effects
        job.sweep_us = now_us + CHECKPOINT_US
        for place, line in tuple(job.open.items()):
            newest = line.attempts[line.newest]
            if line.retry_us is None and newest.submitted_us + self._config.line_timeout_us <= now_us:
                message = "The request was not closed in time: look whether the router and the generators run."
                effects += self._done(job, place, line.newest, LineError(code="expired", message=message))
        return effects

    def _cancel_open(self, job: JobRun) -> list[Effect]:
        effects: list[Effect] = []
        for place, line in tuple(job.open.items()):
            if line.retry_us is None:
                effects.append(AskCancel(job.batch_id, line_request_id(job.batch_id, place, line.newest)))
            else:
                error = LineError(code="", message="")
                effects += self._done(job, place, line.newest, error)
        return effects

    def _progress(self, job: JobRun, now_us: int, positions: Positions | None) -> BatchProgress:
        job.changed = False
        # Otherwise, the checkpoints of a large job would fill the topic, and the broker would drop the job's beginning.
        longer_us = CHECKPOINT_US * max(1, len(job.open) // CHECKPOINT_LINES)
        job.checkpoint_us = now_us + min(longer_us, LONGEST_CHECKPOINT_US)
        count = self._config.partitions
        streams = list(job.stream_offsets if positions is None else positions[STREAMS.name])
        requests = list(job.request_offsets if positions is None else positions[REQUESTS_BATCH.name])
        for place, line in job.open.items():
            for number, attempt in line.attempts.items():
                partition = partition_for(line_request_id(job.batch_id, place, number), count)
                streams[partition] = min(streams[partition], attempt.stream_offset)
                if not attempt.on_log:
                    requests[partition] = min(requests[partition], attempt.request_offset)
        return BatchProgress(
            batch_id=job.batch_id, tenant=job.created.tenant, at=now_us, source=self._config.source, epoch=job.epoch,
            next_line=job.next_line, open=tuple(open_lines(job.open.items())), parts=job.parts, totals=job.totals,
            stream_offsets=tuple(streams), request_offsets=tuple(requests),
        )  # fmt: skip


def _earlier(offsets: Sequence[int], positions: Sequence[int]) -> tuple[int, ...]:
    # A position is before the checkpoint's offset if the broker lost records: later records got their offsets.
    if not offsets:
        return tuple(positions)
    return tuple(min(pair) for pair in zip(offsets, positions, strict=False))


def open_lines(lines: Iterable[tuple[int, LineState]]) -> Iterator[OpenLine]:
    for place, line in lines:
        newest = line.newest
        yield OpenLine(line=place, attempt=newest, on_log=line.attempts[newest].on_log)
