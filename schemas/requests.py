"""What is asked: the one event that starts everything."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import Attempt, Event, Name

Role = Literal["system", "user", "assistant"]
Lane = Literal["interactive", "batch"]
Mode = Literal["optimistic", "windowed", "gated"]
Fallback = Literal["cancel", "race", "off"]
Egress = Literal["allowed", "forbidden"]

MAX_PROMPT_CHARS = 262_144
"""A message's bound, in code points. Well below the broker's record limit even when every character takes 3 bytes."""

DurationMs = Annotated[int, Meta(ge=1, le=86_400_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of the conversation.

    Attributes:
        role: Who speaks.
        content: What is said, at most 262,144 code points.
    """

    role: Role
    content: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        max_tokens: Longest answer, in tokens.
        temperature: 0 is greedy.
        top_p: Nucleus mass.
        seed: Makes sampling repeatable where the engine can.
        stop: Strings that end the answer; they are not part of it.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=131_072)] = 512
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.7
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=8)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How much of the answer may be on a screen before it was checked.

    Attributes:
        mode: ``optimistic`` shows at once, ``windowed`` holds back the newest, ``gated`` shows what is cleared.
        hold_tokens: ``windowed``: this many newest tokens wait until cleared; 0 leaves the rule out.
        hold_ms: ``windowed``: text younger than this waits until cleared; 0 leaves the rule out.
        max_exposure_tokens: Never more tokens than this are shown beyond what is cleared.
    """

    mode: Mode = "optimistic"
    hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """By when, in milliseconds since the request's receipt (``Request.at``), except ``stall_ms``.

    Attributes:
        verdict_ms: The input rails' verdict must be on the log.
        ttft_ms: The first content token must be on the log.
        stall_ms: Longest silence between two chunks of an answer.
        total_ms: The request must be closed.
    """

    verdict_ms: DurationMs = 1_000
    ttft_ms: DurationMs = 200
    stall_ms: DurationMs = 2_000
    total_ms: DurationMs = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Event):
    """A prompt that wants an answer. ``at`` is the moment of receipt: every deadline counts from it.

    Attributes:
        model: Model asked for; ``default`` means whatever the generator serves.
        messages: The conversation, oldest first.
        sampling: How tokens are drawn.
        lane: ``interactive`` goes before ``batch``.
        attempt: 1 as received; the router republishes with 2 and more.
        delivery: How much may be seen before it was checked.
        deadlines: By when.
        fallback: What a missed first-token deadline does: ``cancel`` attempt 1, ``race`` it, or nothing (``off``).
        egress: ``forbidden`` marks a prompt that must never leave the premises.
    """

    model: Name = "default"
    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=256)]
    sampling: Sampling = field(default_factory=Sampling)
    lane: Lane = "interactive"
    attempt: Attempt = 1
    delivery: Delivery = field(default_factory=Delivery)
    deadlines: Deadlines = field(default_factory=Deadlines)
    fallback: Fallback = "cancel"
    egress: Egress = "allowed"
