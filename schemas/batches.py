"""Events about batch jobs. A job is a file of prompts that are answered in the lane ``batch``.

The requests of a job are ordinary ``Request`` events.
"""

from typing import Annotated, Literal

import msgspec
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


class BatchEvent(AnyEvent, frozen=True, kw_only=True):
    """Base class of the events about one job.

    Attributes:
        batch_id: Id of the job. It is also the record's key.
        tenant: The tenant that pays for the job and whose policy applies.
        at: Time at which the event was written, in microseconds since the epoch, by the writer's clock.
        source: Service and instance that wrote the event.
    """

    batch_id: BatchId
    tenant: Tenant
    at: AtUs
    source: Source


class BatchCreated(BatchEvent, frozen=True, kw_only=True):
    """A job was submitted. Its lines are in a file in the format of OpenAI's Batch API.

    Attributes:
        input_file: Id of the file with the lines.
        window_open: Maximum number of the job's requests that are open at the same time.
        line_attempts: Maximum number of requests that may be submitted for one line.
        completion_ms: Time limit of the job, in milliseconds. Lines that are not done by then are given up.
        bad_lines: What happens if a line is not a valid request. ``report`` writes an error for each such line and runs
            the other lines; ``refuse`` runs no line.
        metadata: Pairs of key and value that the client stores with the job.
    """

    input_file: FileId
    window_open: Annotated[int, Meta(ge=1, le=10_000)] = 256
    line_attempts: Annotated[int, Meta(ge=1, le=100)] = 4
    completion_ms: Annotated[int, Meta(ge=1, le=30 * 86_400_000)] = 86_400_000
    bad_lines: BadLines = "report"
    metadata: Annotated[tuple[tuple[MetadataKey, MetadataValue], ...], Meta(max_length=16)] = ()


class BatchControl(BatchEvent, frozen=True, kw_only=True):
    """A command to pause, to resume or to cancel a job.

    Attributes:
        action: ``pause`` stops the submission of lines, ``resume`` continues it, ``cancel`` ends the job.
    """

    action: BatchAction


class OpenLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job's line that was submitted and is not done.

    Attributes:
        line: Number of the line in the order of submission.
        attempt: Number of requests so far for this line.
        on_log: Whether the batch service has read the newest of these requests back from the log.
    """

    line: LineNumber
    attempt: Annotated[int, Meta(ge=1, le=255)]
    on_log: bool = True


class BatchTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The number of lines of a job, and sums over the lines that are done.

    Attributes:
        lines: Number of lines of the job, including invalid lines; 0 until they are counted.
        completed: Number of lines with an answer.
        failed: Number of lines with an error.
        retried: Number of requests that were submitted in addition to the first request of each line.
        prompt_tokens: Number of tokens in the prompts of answered lines.
        cached_tokens: Number of prompt tokens that were found in the engine's prefix cache.
        completion_tokens: Number of tokens in the answers.
    """

    lines: Count = 0
    completed: Count = 0
    failed: Count = 0
    retried: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0


class ResultPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file with results, in the order in which the lines were completed.

    Attributes:
        name: Name of the file in the job's folder.
        length: Number of valid bytes from the start of the file. Later bytes are ignored.
    """

    name: Name
    length: Count


class BatchProgress(BatchEvent, frozen=True, kw_only=True):
    """The progress of a job. Another batch service can continue the job from here.

    Readers ignore the event if an earlier ``BatchProgress`` of the same job has a higher ``epoch``, or the same
    ``epoch`` and another ``source``. In both cases, another batch service had already taken the job over.

    Attributes:
        epoch: Number that a batch service raises by one when it takes over the job.
        next_line: Number of the first line that was not submitted yet, in the order of submission.
        open: The submitted lines that are not done.
        parts: The files with the results of the lines that are done.
        totals: Sums over the lines that are done.
        stream_offsets: For each partition of ``railbus.streams``, the offset from which to read events about open
            lines.
        request_offsets: For each partition of ``railbus.requests.batch``, the offset from which to read the requests
            of open lines whose ``on_log`` is false.
    """

    # An event is void if an earlier one of the job has a higher epoch, or the same epoch and another source.
    epoch: Annotated[int, Meta(ge=1, le=2**32)]
    next_line: Count = 0
    open: Annotated[tuple[OpenLine, ...], Meta(max_length=10_000)] = ()
    parts: Annotated[tuple[ResultPart, ...], Meta(max_length=10_000)] = ()
    totals: BatchTotals = msgspec.field(default_factory=BatchTotals)
    stream_offsets: tuple[Count, ...] = ()
    request_offsets: tuple[Count, ...] = ()


class LineFault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a line of the input is not a valid request.

    Attributes:
        code: Code of the fault, for programs.
        message: One sentence for people. It never contains prompt text.
        line: Number of the line in the file, from 1; None if the whole file is faulty.
        param: Name of the faulty field.
        custom_id: The line's ``custom_id``, if it has one.
    """

    code: Name
    message: ShortText
    line: Annotated[int, Meta(ge=1, le=2**32)] | None = None
    param: Name | None = None
    custom_id: Annotated[str, Meta(max_length=512)] | None = None


class BatchFinished(BatchEvent, frozen=True, kw_only=True):
    """A job has ended, and its result files are complete. Only the first such event of a job on the log is valid.

    Attributes:
        outcome: How the job ended.
        totals: Sums over all lines.
        output_file: Id of the file with the answers; None if there are no answers.
        error_file: Id of the file with the lines without an answer; None if there are no such lines.
        faults: Why the input of a ``failed`` job is not valid, at most 100 faults.
    """

    outcome: BatchOutcome
    totals: BatchTotals = msgspec.field(default_factory=BatchTotals)
    output_file: FileId | None = None
    error_file: FileId | None = None
    faults: Annotated[tuple[LineFault, ...], Meta(max_length=100)] = ()
