"""Events about batch jobs: a file of prompts that is answered in the lane ``batch``.

The prompts and their answers are in files; a job's requests are ordinary ``Request`` events. These events say what the
job is, what its owner wants done with it, and how much of it is done.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import AnyEvent, AtUs, Count, Name, ShortText, Source, Tenant

BATCH_ID_PATTERN = r"^batch_[0-9a-f]{32}$"

BatchId = Annotated[str, Meta(pattern=BATCH_ID_PATTERN, max_length=38, description="`batch_` and a UUIDv7's digits.")]
FileId = Annotated[str, Meta(pattern=r"^file-[0-9a-z]{1,40}$(?!\n)", description="A file of the batch service.")]
BatchAction = Literal["pause", "resume", "cancel"]
BatchOutcome = Literal["completed", "failed", "cancelled", "expired"]
BadLines = Literal["report", "refuse"]
LineNumber = Annotated[int, Meta(ge=0, le=2**32 - 1)]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvent(AnyEvent):
    """Base of the events about one job.

    Attributes:
        batch_id: The job; also the record's key.
        tenant: Who pays, and whose policy applies.
        at: When it was written, in microseconds since the epoch, by the writer's clock.
        source: Service and instance that wrote it.
    """

    batch_id: BatchId
    tenant: Tenant
    at: AtUs
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCreated(BatchEvent):
    """A job was submitted. Its lines are in a file, in the form of OpenAI's Batch API.

    Attributes:
        input_file: The file with the lines.
        window_open: Most requests of the job that may be open at once.
        line_attempts: Most requests that one line may take.
        completion_ms: When lines that are not done by then are given up.
        bad_lines: ``report`` reports a line that is no request and runs the others; ``refuse`` runs none.
        metadata: What the client wants to remember.
    """

    input_file: FileId
    window_open: Annotated[int, Meta(ge=1, le=10_000)] = 256
    line_attempts: Annotated[int, Meta(ge=1, le=100)] = 4
    completion_ms: Annotated[int, Meta(ge=1, le=30 * 86_400_000)] = 86_400_000
    bad_lines: BadLines = "report"
    metadata: Annotated[tuple[tuple[MetadataKey, MetadataValue], ...], Meta(max_length=16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchControl(BatchEvent):
    """Somebody wants a job to pause, to resume or to end.

    Attributes:
        action: ``pause`` submits no further line, ``resume`` goes on, ``cancel`` ends the job for good.
    """

    action: BatchAction


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLine:
    """A line that was submitted and is not done.

    Attributes:
        line: Its place in the order of submission.
        attempt: The newest request of it.
        on_log: Whether that request was read back from the log; if not, it may have to be written again.
    """

    line: LineNumber
    attempt: Annotated[int, Meta(ge=1, le=255)]
    on_log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Sums over the lines that are done.

    Attributes:
        lines: Lines of the job, those that are no requests included; 0 until they were counted.
        completed: Lines with an answer.
        failed: Lines with an error.
        retried: Requests beyond the first one of a line.
        prompt_tokens: In the prompts of answered lines.
        cached_tokens: Of these, found in the engine's prefix cache.
        completion_tokens: In the answers.
    """

    lines: Count = 0
    completed: Count = 0
    failed: Count = 0
    retried: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPart:
    """A file with results, in the order in which lines were done.

    Attributes:
        name: Its name in the job's folder.
        length: Bytes of it that count.
    """

    name: Name
    length: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress(BatchEvent):
    """A job's progress: everything beside the log that a batch service needs to continue it.

    It is void if an earlier one on the log has a higher epoch, or the same epoch and another source: its writer was
    replaced.

    Attributes:
        epoch: Grows by one with each batch service that takes the job over.
        next_line: Every line before this one, in the order of submission, was submitted.
        open: Of these, the ones that are not done.
        parts: Where the results of the others are.
        totals: Sums over the lines that are done.
        stream_offsets: By partition of ``railbus.streams``: the events of open lines are at or after this offset.
        request_offsets: By partition of ``railbus.requests.batch``: what was submitted later, and what is not known to
            be on the log, is at or after it.
    """

    epoch: Annotated[int, Meta(ge=1, le=2**32)]
    next_line: Count = 0
    open: Annotated[tuple[OpenLine, ...], Meta(max_length=10_000)] = ()
    parts: Annotated[tuple[ResultPart, ...], Meta(max_length=10_000)] = ()
    totals: BatchTotals = field(default_factory=BatchTotals)
    stream_offsets: tuple[Count, ...] = ()
    request_offsets: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFault:
    """Why a line of the input is no request.

    Attributes:
        code: For programs.
        message: One sentence for people; never prompt text.
        line: Its number in the file, from 1; None where the whole file is at fault.
        param: The field at fault.
        custom_id: The line's own name, if it has one.
    """

    code: Name
    message: ShortText
    line: Annotated[int, Meta(ge=1, le=2**32)] | None = None
    param: Name | None = None
    custom_id: Annotated[str, Meta(max_length=512)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished(BatchEvent):
    """The job has ended; its result files are complete. The first one on the log counts.

    Attributes:
        outcome: How.
        totals: Sums over all lines.
        output_file: The answers; None when there is none.
        error_file: The lines without an answer; None when there is none.
        faults: Why the job ``failed`` before it ran; the first ones.
    """

    outcome: BatchOutcome
    totals: BatchTotals = field(default_factory=BatchTotals)
    output_file: FileId | None = None
    error_file: FileId | None = None
    faults: Annotated[tuple[LineFault, ...], Meta(max_length=100)] = ()
