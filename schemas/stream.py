"""The events of the stream log. Each is about the answer of one request."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.base import MAX_ATTEMPT, Attempt, AtUs, Count, Event, Ms, Name, RunId, ShortText
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


class StreamEvent(Event, frozen=True, kw_only=True):
    """Base class of the events on the stream log."""


class RailOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one rail. A rail is a check of the prompt.

    Attributes:
        rail: The rail's name in the policy.
        result: What the rail found. The rail gave no answer if it failed (``broke``), was too slow (``timeout``), or
            was stopped or never started (``cancelled``).
        ms: Duration of the rail in milliseconds.
        detail: The reason, in a word or a sentence. It never contains prompt text.
        egress: Whether the rail lets the prompt leave the premises. A rail that gave no answer does not. None in events
            of older versions.
    """

    rail: Name
    result: RailResult
    ms: Ms
    detail: ShortText = ""
    egress: Egress | None = None


class Verdict(StreamEvent, frozen=True, kw_only=True):
    """The policy's decision about the prompt.

    If a request has several verdicts, only the first one on the log is valid.

    Attributes:
        decision: ``allow`` lets the answer be shown. ``deny`` ends the request. ``mask`` makes the router start another
            attempt, whose prompt is in the field ``masked``.
        rails: Outcome and duration of each rail.
        policy_version: Content hash of the policy that decided.
        refusal: The text that a denied user is shown.
        masked: The prompt of the next attempt if the decision is ``mask``.
        delivery: The stricter delivery that the policy requires; None if the requested one applies.
        egress: Whether the policy allows the prompt to leave the premises.
        total_ms: Time from when the rails service read the request until it decided, in milliseconds.
    """

    decision: VerdictDecision
    rails: Annotated[tuple[RailOutcome, ...], Meta(max_length=64)] = ()
    policy_version: Name
    refusal: ShortText = ""
    masked: Annotated[tuple[Message, ...], Meta(max_length=256)] | None = None
    delivery: Delivery | None = None
    egress: Egress = "allowed"
    total_ms: Ms = 0.0


class RunEvent(StreamEvent, frozen=True, kw_only=True):
    """Base class of the events about one run.

    An attempt is one try to answer a request. A run is one execution of an attempt. A restarted worker may run the same
    attempt again.

    Attributes:
        attempt: Number of the attempt.
        run: Id of the run.
    """

    attempt: Attempt
    run: RunId


class Started(RunEvent, frozen=True, kw_only=True):
    """A worker started to run an attempt. If several runs of an attempt start, only the first one on the log is valid.

    Attributes:
        model: The model that answers.
        engine: The engine that runs the model.
        queue_ms: Time from when the edge received the request to this event, in milliseconds.
        received_at: Time at which the edge received the request, converted to the worker's clock, in microseconds since
            the epoch. It is for display only.
        delivery: The requested delivery mode: how much of the answer may be shown before it is checked.
        deadlines: The deadlines of the request.
        input_gate: ``off`` means that text may be shown before the verdict.
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


class Chunk(RunEvent, frozen=True, kw_only=True):
    """The text of one step of the engine.

    Attributes:
        seq: Number of the chunk within the run, from 0.
        start: Offset of this text in the run's whole text, in code points.
        text: The text, at least one character.
        tokens: Number of tokens in this step, including tokens without text.
        drafted: Number of tokens that the draft proposed in this step.
        accepted: Number of drafted tokens that the target accepted.
    """

    seq: Seq
    start: Count
    text: Annotated[str, Meta(min_length=1, max_length=65_536)]
    tokens: Count = 1
    drafted: Count = 0
    accepted: Count = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Numbers of tokens.

    Attributes:
        prompt_tokens: Tokens in the prompt.
        completion_tokens: Tokens in the answer.
        cached_tokens: Tokens of the prompt that were found in the prefix cache.
    """

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a run spent its time, in milliseconds.

    Attributes:
        queue_ms: Time until the engine scheduled the run.
        prefill_ms: Time from scheduling to the first token.
        decode_ms: Time from the first token to the last.
    """

    queue_ms: Ms = 0.0
    prefill_ms: Ms = 0.0
    decode_ms: Ms = 0.0


class Speculation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Totals of speculative decoding over a whole run.

    Attributes:
        steps: Number of steps in which the target verified drafted tokens.
        drafted: Number of tokens that the draft proposed.
        accepted: Number of tokens that the target accepted.
        accepted_by_position: How often the drafted token at position 1, 2, ... of a step was accepted.
    """

    steps: Count = 0
    drafted: Count = 0
    accepted: Count = 0
    accepted_by_position: Annotated[tuple[Count, ...], Meta(max_length=64)] = ()


class Finished(RunEvent, frozen=True, kw_only=True):
    """A run completed its answer.

    Attributes:
        last_seq: ``seq`` of the last chunk; -1 if there was none.
        finish_reason: ``stop`` or ``length``.
        usage: Numbers of tokens.
        timings: How the run spent its time.
        speculation: Totals of speculative decoding; None if it is off.
    """

    last_seq: LastSeq
    finish_reason: FinishReason
    usage: Usage = msgspec.field(default_factory=Usage)
    timings: Timings = msgspec.field(default_factory=Timings)
    speculation: Speculation | None = None


class Failed(RunEvent, frozen=True, kw_only=True):
    """A run ended without a complete answer, or was cancelled.

    Attributes:
        error_class: Class of the failure.
        message: One sentence for people. It never contains prompt text.
        retryable: Whether another attempt could succeed.
        last_seq: ``seq`` of the last chunk on the log; -1 if there was none.
        usage: Tokens used before the failure.
        param: Name of the request's field that is wrong; None if no field is wrong.
    """

    error_class: ErrorClass
    message: ShortText
    retryable: bool
    last_seq: LastSeq = -1
    usage: Usage = msgspec.field(default_factory=Usage)
    param: Name | None = None


class Cutover(StreamEvent, frozen=True, kw_only=True):
    """The router starts another attempt to take over the answer.

    The voice is the run whose text is shown. Readers ignore a ``Cutover`` if earlier events on the log contradict it.

    Attributes:
        attempt: Number of the new attempt.
        trigger: The reason for the cutover.
        how: ``cancel`` ends the earlier attempt. ``race`` lets both attempts go on, and the run that has the first
            chunk on the log becomes the voice. For triggers other than ``ttft``, readers treat ``race`` as ``cancel``.
        target: The worker that runs the new attempt.
        seen_seq: For the trigger ``stall``: ``seq`` of the voice's last chunk that the router had read. Readers ignore
            the ``Cutover`` if a chunk of the voice with a higher ``seq`` precedes the ``Cutover`` on the log.
    """

    attempt: Annotated[int, Meta(ge=2, le=MAX_ATTEMPT)]
    trigger: Trigger
    how: CutoverMode = "cancel"
    target: Literal["vertex", "generator"] = "vertex"
    seen_seq: LastSeq = -1


class Cleared(RunEvent, frozen=True, kw_only=True):
    """The safety service has checked the text of a run, up to and including the chunk ``seq``.

    All recalls that this check led to are earlier on the log.

    Attributes:
        seq: ``seq`` of the last chunk that is checked; -1 if the run has no chunk.
        final: Whether this is the last event of the safety service about this run.
        policy_version: Content hash of the policy by which the text was checked.
    """

    seq: LastSeq
    final: bool = False
    policy_version: Name


class Recall(RunEvent, frozen=True, kw_only=True):
    """The safety service takes back a span of the answer, or the whole answer.

    Attributes:
        recall_id: Id of the recall. A second recall with the same id changes nothing.
        start: Offset of the span's first code point in the run's whole text.
        end: One past the offset of the span's last code point.
        action: ``stop`` withdraws the whole answer. ``redact`` replaces the span.
        replacement: The text that is shown instead.
        rule: Name of the rule that found something.
        category: Category of the rule.
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


class Closed(StreamEvent, frozen=True, kw_only=True):
    """The router ended the request.

    The first ``Closed`` that is not void counts. A ``Closed`` is void if the events before it on the log contradict its
    cause. The voice is the run whose text is shown.

    Attributes:
        outcome: How the request ended.
        reason: One sentence for people.
        attempt: Number of the attempt to which the voice belonged; None if there was no voice.
        cause: The reason, as a code for programs. A ``Closed`` without a cause is never void.
        seen_seq: ``seq`` of the voice's last chunk that the router had read.
        seen_attempts: Number of the request's attempts in the events that the router had read.
    """

    outcome: Outcome
    reason: ShortText = ""
    attempt: Attempt | None = None
    cause: Cause | None = None
    seen_seq: LastSeq = -1
    seen_attempts: Attempt = 1
