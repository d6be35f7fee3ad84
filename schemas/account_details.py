"""Parts of an ``Account`` that describe the request, the verdict, the runs and the check of the answer.

Points in time are append times by the broker's clock, in microseconds since the epoch.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from schemas.base import AtUs, Count, Ms, Name, Source
from schemas.requests import DeliveryMode
from schemas.stream import FinishReason, RailOutcome, RecallAction, Timings, VerdictDecision


class RequestDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The parameters of the request, without the prompt.

    Attributes:
        source: The edge or the app that wrote the request.
        model: The requested model.
        max_tokens: Maximum length of the answer, in tokens.
        temperature: Temperature of sampling.
        top_p: Probability mass of nucleus sampling.
        seed: Seed of sampling; None if the request has none.
        delivery: How much of the answer could be shown before it was checked.
    """

    source: Source
    model: Name
    max_tokens: Count
    temperature: Annotated[float, Meta(ge=0)]
    top_p: Annotated[float, Meta(ge=0)]
    seed: Count | None = None
    delivery: DeliveryMode = "optimistic"


class VerdictDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first verdict on the prompt. Later verdicts have no effect.

    Attributes:
        source: The service and instance that wrote the verdict.
        appended_at: Append time of the verdict.
        decision: The decision about the prompt.
        rails: Outcome and duration of each rail.
    """

    source: Source
    appended_at: AtUs
    decision: VerdictDecision
    rails: Annotated[tuple[RailOutcome, ...], Meta(max_length=64)] = ()


class RunDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first run of an attempt.

    Attributes:
        source: The worker that executed the run.
        queue_ms: Milliseconds between the arrival of the request at the edge and ``Started``. The worker computed it.
        started_at: Append time of the run's ``Started``.
        first_chunk_at: Append time of the run's first chunk; None if it has no chunk.
        ended_at: Append time of the run's last event.
        finish_reason: Why the answer ended; None if the run did not finish.
        timings: How the engine spent the time; None if the run did not finish.
        retryable: Whether another attempt could succeed; None if the run did not fail.
    """

    source: Source
    queue_ms: Ms
    started_at: AtUs
    first_chunk_at: AtUs | None = None
    ended_at: AtUs
    finish_reason: FinishReason | None = None
    timings: Timings | None = None
    retryable: bool | None = None


class RecallDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recall that was written before the account.

    Attributes:
        appended_at: Append time of the recall.
        action: ``stop`` withdraws the whole answer; ``redact`` replaces a part of it.
        rule: Name of the rule that found something.
        category: Category of the rule.
    """

    appended_at: AtUs
    action: RecallAction
    rule: Name
    category: Name


class CheckDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the answer was checked.

    Attributes:
        source: The service and instance that wrote the last event of the check.
        ended_at: Append time of the last event of the check.
        policy_version: Version of the policy that was used.
        recalls: The recalls in order, at most 100 of them.
    """

    source: Source
    ended_at: AtUs
    policy_version: Name
    recalls: Annotated[tuple[RecallDetails, ...], Meta(max_length=100)] = ()
