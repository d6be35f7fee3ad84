"""The stream log's vocabulary: everything that is said about the answer of one request. One writer per kind."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import Attempt, AtUs, Count, Event, Ms, Name, Run, ShortText
from schemas.requests import Deadlines, Delivery, Egress, Message

Decision = Literal["allow", "deny", "mask"]
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
How = Literal["cancel", "race"]
Action = Literal["stop", "redact"]
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
Gate = Literal["hold", "off"]
Check = Literal["on", "off"]

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
        result: A rail that ``broke`` or ran into its ``timeout`` is not a rail that ``passed``.
        ms: How long it took, in milliseconds.
        detail: Why, in a word or a sentence; never prompt text.
    """

    rail: Name
    result: RailResult
    ms: Ms
    detail: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(StreamEvent):
    """Rails: what policy says of the prompt. The first one in the log counts.

    Attributes:
        decision: ``allow`` opens the gate, ``deny`` ends the request, ``mask`` asks for a rerun with ``masked``.
        rails: Each rail's outcome and time.
        policy_version: Content hash of the policy that decided.
        refusal: What a denied user is shown.
        masked: The prompt to rerun with, when the decision is ``mask``.
        delivery: Policy's tightening of the request's delivery; None leaves what was asked.
        egress: Whether policy lets the prompt leave the premises.
        total_ms: From taking up the request to the verdict, in milliseconds.
    """

    decision: Decision
    rails: Annotated[tuple[RailOutcome, ...], Meta(max_length=64)] = ()
    policy_version: Name
    refusal: ShortText = ""
    masked: Annotated[tuple[Message, ...], Meta(max_length=256)] | None = None
    delivery: Delivery | None = None
    egress: Egress = "allowed"
    total_ms: Ms = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Voiced(StreamEvent):
    """Base of what is said of one execution of one attempt.

    Attributes:
        attempt: Which attempt.
        run: Which execution of it.
    """

    attempt: Attempt
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Voiced):
    """Worker: an execution began. Within an attempt the first one in the log is the one that is heard.

    Attributes:
        model: The model that answers.
        engine: The engine that runs it.
        queue_ms: From the request's receipt to this event, in milliseconds.
        received_at: The request's receipt, microseconds since the epoch: zero of all its deadlines.
        delivery: As the request asks.
        deadlines: As the request asks.
        input_gate: ``off`` says on the log that text may be shown before any verdict.
        output_check: ``off`` says on the log that no safety service checks the answer.
    """

    model: Name
    engine: Name
    queue_ms: Ms
    received_at: AtUs
    delivery: Delivery
    deadlines: Deadlines
    input_gate: Gate = "hold"
    output_check: Check = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(Voiced):
    """Worker: the text of one engine step; never empty.

    Attributes:
        seq: 0, 1, 2 ... within the run.
        start: Code-point offset of the text in the run's whole text.
        text: At least one character.
        tokens: Tokens in this step, those that gave no text of their own included.
        drafted: Tokens the draft proposed in this step.
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
    """Tokens that were paid for.

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
    """Where an execution's time went, in milliseconds.

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
    """What drafting did over a whole execution.

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
class Finished(Voiced):
    """Worker: the execution came to its own end.

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
class Failed(Voiced):
    """Worker: the execution ended without an answer, or was cancelled.

    Attributes:
        error_class: What kind of failure.
        message: One sentence for people; never prompt text.
        retryable: Whether another attempt could help.
        last_seq: The last chunk published; -1 when there was none.
        usage: Tokens spent all the same.
        param: Which field of the request is at fault; None when none.
    """

    error_class: ErrorClass
    message: ShortText
    retryable: bool
    last_seq: LastSeq = -1
    usage: Usage = field(default_factory=Usage)
    param: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutover(StreamEvent):
    """Router: the voice moves on to the next attempt, if the fold finds this effective.

    Attributes:
        attempt: The next attempt's number.
        trigger: Why.
        how: ``cancel`` drops the earlier attempt; ``race`` lets the first chunk in the log decide.
        target: Who runs the next attempt.
        seen_seq: ``stall``: the last seq the router had read of the voice; void if more came before this event.
    """

    attempt: Annotated[int, Meta(ge=2, le=100)]
    trigger: Trigger
    how: How = "cancel"
    target: Literal["vertex", "generator"] = "vertex"
    seen_seq: LastSeq = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(Voiced):
    """Safety: the text of the run is checked up to here, whatever was found in it is recalled already.

    Attributes:
        seq: Checked through this chunk; -1 when there was none.
        final: Nothing more will be said of this run.
        policy_version: Content hash of the policy that checked.
    """

    seq: LastSeq
    final: bool = False
    policy_version: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Voiced):
    """Safety: this text must not stand.

    Attributes:
        recall_id: Same finding, same id: a repetition changes nothing.
        start: First code point of the span in the run's whole text.
        end: One past the last.
        action: ``stop`` withdraws the whole answer; ``redact`` replaces the span, wherever it is or will be shown.
        replacement: What is shown instead.
        rule: Which rule found it.
        category: What it is about.
        policy_version: Content hash of the policy that decided.
    """

    recall_id: Name
    start: Count
    end: Count
    action: Action
    replacement: ShortText = ""
    rule: Name
    category: Name
    policy_version: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(StreamEvent):
    """Router: the one terminal event. The first in the log whose cause holds at its place counts.

    Attributes:
        outcome: How the request ended.
        reason: One sentence for people.
        attempt: The attempt that was heard at the end; None when none was.
        cause: Why, for programs. One that no longer holds at this event's place makes it void; None never does.
        seen_seq: The last seq the router had read of the voice.
        seen_attempts: How many attempts were opened in what the router had read.
    """

    outcome: Outcome
    reason: ShortText = ""
    attempt: Attempt | None = None
    cause: Cause | None = None
    seen_seq: LastSeq = -1
    seen_attempts: Attempt = 1
