"""The events of the stream log, which are about the answer of one request. Each kind has one writer."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import Attempt, AtUs, Count, Event, Ms, Name, RunId, ShortText
from schemas.requests import Deadlines, Delivery, Egress, Message

VerdictDecision = Literal["allow", "deny", "mask"]
RailResult = Literal["passed", "blocked", "masked", "broke", "timeout", "cancelled"]
FinishReason = Literal["stop", "length"]
ErrorClass = Literal[
    "unavailable",
    "overloaded",
    "timeout",
    "bad_request",
    "auth",
    "safety_block",
    "engine_dead",
    "cancelled",
    "internal",
]
Trigger = Literal["ttft", "hard_error", "stall", "mask"]
CutoverMode = Literal["cancel", "race"]
RecallAction = Literal["stop", "redact"]
Outcome = Literal["completed", "recalled", "denied", "failed", "cancelled", "expired", "rejected"]
Conclusion = Literal["answered", "denied", "recalled"]
Cause = Literal[
    Conclusion,
    "deadline",
    "client_gone",
    "no_verdict",
    "no_first_token",
    "stalled",
    "attempts_failed",
    "cannot_begin",
    "no_masked_prompt",
    "too_many_open",
    "unreadable",
]
InputGate = Literal["hold", "off"]
OutputCheck = Literal["on", "off"]

Seq = Annotated[int, Meta(ge=0, le=2**31)]
LastSeq = Annotated[int, Meta(ge=-1, le=2**31, description="-1: no chunk at all.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent(Event):
    """Base of everything on the stream log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOutcome:
    """What one input rail found.

    Attributes:
        rail: Its name in the policy.
        result: A rail that ``broke`` or reached its ``timeout`` has not ``passed``.
        ms: How long it took, in milliseconds.
        detail: Why, in a word or a sentence; never prompt text.
    """

    rail: Name
    result: RailResult
    ms: Ms
    detail: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(StreamEvent):
    """Rails: the policy's decision about the prompt. The first one in the log counts.

    Attributes:
        decision: ``allow`` opens the gate, ``deny`` ends the request, ``mask`` asks for a rerun with ``masked``.
        rails: Each rail's outcome and time.
        policy_version: Content hash of the policy that decided.
        refusal: What a denied user is shown.
        masked: The prompt to rerun with, when the decision is ``mask``.
        delivery: A stricter delivery that the policy sets; None keeps the request's.
        egress: Whether the policy lets the prompt leave the premises.
        total_ms: From reading the request to the verdict, in milliseconds.
    """

    decision: VerdictDecision
    rails: Annotated[tuple[RailOutcome, ...], Meta(max_length=64)] = ()
    policy_version: Name
    refusal: ShortText = ""
    masked: Annotated[tuple[Message, ...], Meta(max_length=256)] | None = None
    delivery: Delivery | None = None
    egress: Egress = "allowed"
    total_ms: Ms = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(StreamEvent):
    """Base of the events about one execution of one attempt.

    Attributes:
        attempt: Which attempt.
        run: Which execution of it.
    """

    attempt: Attempt
    run: RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(RunEvent):
    """Worker: an execution began. Within an attempt only the first one in the log can be the voice.

    Attributes:
        model: The model that answers.
        engine: The engine that runs it.
        queue_ms: From the request's receipt to this event, in milliseconds.
        received_at: The request's receipt by the worker's clock, microseconds since the epoch, for people.
        delivery: As in the request.
        deadlines: As in the request.
        input_gate: ``off`` means that text may be shown before any verdict.
        output_check: ``off`` means that no safety service checks the answer.
    """

    model: Name
    engine: Name
    queue_ms: Ms
    received_at: AtUs
    delivery: Delivery
    deadlines: Deadlines
    input_gate: InputGate = "hold"
    output_check: OutputCheck = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(RunEvent):
    """Worker: the text of one engine step; never empty.

    Attributes:
        seq: 0, 1, 2 ... within the run.
        start: Code-point offset of the text in the run's whole text.
        text: At least one character.
        tokens: Tokens in this step, including those without text of their own.
        drafted: Tokens that the draft proposed in this step.
        accepted: Of those, accepted by the target.
    """

    seq: Seq
    start: Count
    text: Annotated[str, Meta(min_length=1, max_length=65_536)]
    tokens: Count = 1
    drafted: Count = 0
    accepted: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that were used.

    Attributes:
        prompt_tokens: In the prompt.
        completion_tokens: In the answer.
        cached_tokens: Of the prompt's, those found in the prefix cache.
    """

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How an execution spent its time, in milliseconds.

    Attributes:
        queue_ms: Waiting for the engine.
        prefill_ms: From scheduled to first token.
        decode_ms: From first to last token.
    """

    queue_ms: Ms = 0.0
    prefill_ms: Ms = 0.0
    decode_ms: Ms = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Totals of drafting over a whole execution.

    Attributes:
        steps: Verify steps of the target.
        drafted: Tokens proposed.
        accepted: Tokens accepted.
        accepted_by_position: How often draft position 1, 2 ... was accepted.
    """

    steps: Count = 0
    drafted: Count = 0
    accepted: Count = 0
    accepted_by_position: Annotated[tuple[Count, ...], Meta(max_length=64)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(RunEvent):
    """Worker: the execution completed.

    Attributes:
        last_seq: The last chunk's ``seq``; -1 when there was none.
        finish_reason: ``stop`` or ``length``.
        usage: Tokens.
        timings: Milliseconds.
        speculation: Drafting totals; None when speculation is off.
    """

    last_seq: LastSeq
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(RunEvent):
    """Worker: the execution ended without an answer, or was cancelled.

    Attributes:
        error_class: What kind of failure.
        message: One sentence for people; never prompt text.
        retryable: Whether another attempt could help.
        last_seq: The last chunk published; -1 when there was none.
        usage: Tokens used before the failure.
        param: The request's field that is wrong; None when none is.
    """

    error_class: ErrorClass
    message: ShortText
    retryable: bool
    last_seq: LastSeq = -1
    usage: Usage = field(default_factory=Usage)
    param: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutover(StreamEvent):
    """Router: the next attempt becomes the voice, if the fold finds this event effective.

    Attributes:
        attempt: The next attempt's number.
        trigger: Why.
        how: ``cancel`` drops the earlier attempt; ``race`` lets the first chunk in the log decide.
        target: Who runs the next attempt.
        seen_seq: ``stall``: the voice's last seq that the router had read; void if a later chunk precedes this event.
    """

    attempt: Annotated[int, Meta(ge=2, le=100)]
    trigger: Trigger
    how: CutoverMode = "cancel"
    target: Literal["vertex", "generator"] = "vertex"
    seen_seq: LastSeq = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(RunEvent):
    """Safety: the run's text is checked up to here; everything found in it was recalled before.

    Attributes:
        seq: Checked through this chunk; -1 when there was none.
        final: No further event of safety about this run follows.
        policy_version: Content hash of the policy that checked.
    """

    seq: LastSeq
    final: bool = False
    policy_version: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(RunEvent):
    """Safety: this text must be taken back.

    Attributes:
        recall_id: The same finding has the same id: a repetition changes nothing.
        start: First code point of the span in the run's whole text.
        end: One past the last.
        action: ``stop`` withdraws the whole answer; ``redact`` replaces the span, wherever it is or will be shown.
        replacement: What is shown instead.
        rule: Which rule found it.
        category: The rule's category.
        policy_version: Content hash of the policy that decided.
    """

    recall_id: Name
    start: Count
    end: Count
    action: RecallAction
    replacement: ShortText = ""
    rule: Name
    category: Name
    policy_version: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(StreamEvent):
    """Router: the one terminal event. The first one on the log whose cause is true at that position counts.

    Attributes:
        outcome: How the request ended.
        reason: One sentence for people.
        attempt: The attempt that was the voice at the end; None when none was.
        cause: Why, for programs. The event is void if its cause does not hold at its position on the log;
            None always holds.
        seen_seq: The voice's last seq that the router had read.
        seen_attempts: How many attempts were open in what the router had read.
    """

    outcome: Outcome
    reason: ShortText = ""
    attempt: Attempt | None = None
    cause: Cause | None = None
    seen_seq: LastSeq = -1
    seen_attempts: Attempt = 1
