"""The state of a running job, and the effects that ``BatchCore`` returns to the service."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.batches import BatchCreated, BatchOutcome, BatchProgress, BatchTotals, ResultPart
from services.batch.line_state import LineState
from services.jobs.result_lines import LineAnswer, LineResult

CHECKPOINT_US: Final = 1_000_000
"""Shortest time between two checkpoints of a job, in microseconds."""

CHECKPOINT_LINES: Final = 64
"""A checkpoint names all open lines. For each such number of them, the time between checkpoints is longer."""

LONGEST_CHECKPOINT_US: Final = 60 * CHECKPOINT_US
"""Longest time between two checkpoints of a job that has changed, in microseconds."""


@dataclass(frozen=True, slots=True)
class SubmitLine:
    """Asks the service to write the request of a line to Kafka."""

    batch_id: str
    place: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AskCancel:
    """Asks the service to write a ``Cancel`` event, which cancels a request."""

    batch_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class RecordResult:
    """Asks the service to append a result to the job's part file."""

    batch_id: str
    place: int
    attempt: int
    result: LineResult


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """Asks the service to sync the part file to disk, then to write the progress event to Kafka."""

    batch_id: str
    progress: BatchProgress


@dataclass(frozen=True, slots=True)
class FinishJob:
    """Asks the service to write the job's result files, then its ``BatchFinished`` event."""

    batch_id: str
    outcome: BatchOutcome


JobStage = Literal["starting", "recovering", "running", "over"]


@dataclass(slots=True, eq=False)
class JobRun:
    """One job that this batch service runs.

    Attributes:
        good: Number of valid lines.
        bad: Number of invalid lines.
        window: Maximum number of lines that may be open at once. It adapts to the load.
        recovered_from: Number of submitted lines according to the progress event from which the job was restored; 0 for
            a new job.
        open: Lines that were submitted and have no result, by position in the order of submission.
        waiting: Positions of the open lines that wait for a retry.
    """

    created: BatchCreated
    good: int
    bad: int
    window: float
    stage: JobStage = "starting"
    epoch: int = 0
    next_line: int = 0
    recovered_from: int = 0
    open: dict[int, LineState] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    parts: tuple[ResultPart, ...] = ()
    stream_offsets: tuple[int, ...] = ()
    request_offsets: tuple[int, ...] = ()
    paused: bool = False
    ending: Literal["cancelled", "expired"] | None = None
    ending_us: int = 0
    changed: bool = False
    checkpoint_us: int = 0
    sweep_us: int = 0
    shrunk_us: int = 0
    totals_completed: int = 0
    totals_failed: int = 0
    totals_retried: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def batch_id(self) -> str:
        return self.created.batch_id

    @property
    def totals(self) -> BatchTotals:
        return BatchTotals(
            lines=self.good + self.bad, completed=self.totals_completed, failed=self.totals_failed + self.bad,
            retried=self.totals_retried, prompt_tokens=self.prompt_tokens, cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
        )  # fmt: skip

    def restore(self, before: BatchProgress) -> None:
        """Restore the job's progress, except the field ``open``. ``before`` is the job's newest progress event."""
        totals = before.totals
        self.epoch, self.next_line, self.recovered_from = before.epoch, before.next_line, before.next_line
        self.parts = before.parts
        self.stream_offsets, self.request_offsets = before.stream_offsets, before.request_offsets
        self.totals_completed, self.totals_failed = totals.completed, max(0, totals.failed - self.bad)
        self.totals_retried = totals.retried
        self.prompt_tokens, self.cached_tokens = totals.prompt_tokens, totals.cached_tokens
        self.completion_tokens = totals.completion_tokens

    def skipped(self, begin: int) -> Iterator[int]:
        return (place for place in range(begin, self.next_line) if place not in self.open)

    def count(self, result: LineResult) -> None:
        if not isinstance(result, LineAnswer):
            self.totals_failed += 1
            return
        self.totals_completed += 1
        self.prompt_tokens += result.usage.prompt_tokens
        self.cached_tokens += result.usage.cached_tokens
        self.completion_tokens += result.usage.completion_tokens

    def adapt_window(self, *, crowded: bool, submitted_us: int, now_us: int) -> None:
        """Adapt the window after a request was closed: halve it if ``crowded``, else widen it by one line.

        ``crowded`` means that the request was closed for one of ``CROWDED_CAUSES``, such as ``deadline``. A request
        that was submitted before the last halving does not halve the window again. The window is at most
        ``created.window_open``.
        """
        if not crowded:
            self.window = min(self.window + 1, self.created.window_open)
        elif submitted_us > self.shrunk_us:
            self.window, self.shrunk_us = max(1.0, self.window / 2), now_us

    def is_over(self, now_us: int, grace_us: int) -> bool:
        """Return whether the job has nothing left to write or to wait for.

        A cancelled or expired job waits at most ``grace_us`` for the results of submitted lines.
        """
        if self.ending is None:
            return not self.open and self.next_line >= self.good
        return not self.open or now_us >= self.ending_us + grace_us
