"""Parts of an ``Account`` from which the tracer makes a request's trace, without reading its chunks.

Every time here is when the broker had appended an event, in microseconds since the epoch.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from schemas.base import AtUs, Count, Ms, Name, Source
from schemas.requests import DeliveryMode
from schemas.stream import FinishReason, RailOutcome, RecallAction, Timings, VerdictDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDetails:
    """What was asked for, without the prompt.

    Attributes:
        source: The edge, or the app, that wrote the request.
        model: Model asked for.
        max_tokens: Longest answer, in tokens.
        temperature: As in the request.
        top_p: As in the request.
        seed: As in the request.
        delivery: How much of the answer might be shown before it was checked.
    """

    source: Source
    model: Name
    max_tokens: Count
    temperature: Annotated[float, Meta(ge=0)]
    top_p: Annotated[float, Meta(ge=0)]
    seed: Count | None = None
    delivery: DeliveryMode = "optimistic"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDetails:
    """The verdict that counted.

    Attributes:
        source: The service that wrote it.
        appended_at: When it was on the log.
        decision: What it decided.
        rails: Each rail's outcome and time.
    """

    source: Source
    appended_at: AtUs
    decision: VerdictDecision
    rails: Annotated[tuple[RailOutcome, ...], Meta(max_length=64)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """The first run of an attempt.

    Attributes:
        source: The worker.
        queue_ms: From the attempt's receipt to its ``Started``, as the worker says.
        started_at: When its ``Started`` was on the log.
        first_chunk_at: When its first chunk was; None without one.
        ended_at: When its last event was.
        finish_reason: Why its answer ended; None where it did not finish.
        timings: Where the engine's time went; None where it did not finish.
        retryable: Of a failure: whether another attempt could help.
    """

    source: Source
    queue_ms: Ms
    started_at: AtUs
    first_chunk_at: AtUs | None = None
    ended_at: AtUs
    finish_reason: FinishReason | None = None
    timings: Timings | None = None
    retryable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallDetails:
    """A recall that safety wrote before the request was closed.

    Attributes:
        appended_at: When it was on the log.
        action: What it asked for.
        rule: Which rule found the text.
        category: The rule's category.
    """

    appended_at: AtUs
    action: RecallAction
    rule: Name
    category: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDetails:
    """How the answer was checked.

    Attributes:
        source: The service that wrote the last event of the check.
        ended_at: When that event was appended to the log.
        policy_version: The version of the policy that was used.
        recalls: The recalls in their order, at most 100 of them.
    """

    source: Source
    ended_at: AtUs
    policy_version: Name
    recalls: Annotated[tuple[RecallDetails, ...], Meta(max_length=100)] = ()
