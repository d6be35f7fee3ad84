"""The request: the event that starts everything."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta

from schemas.base import Attempt, Event, Name

MessageRole = Literal["system", "user", "assistant"]
Lane = Literal["interactive", "batch"]
DeliveryMode = Literal["optimistic", "windowed", "gated"]
Fallback = Literal["cancel", "race", "off"]
Egress = Literal["allowed", "forbidden"]

MAX_PROMPT_CHARS = 262_144
"""Most code points of a message: below the broker's record limit even when every character takes 3 bytes."""

MAX_WAITED_MS = 10_000
"""Most that a request counts as having waited at its first writer: a claim moves no deadline further ahead."""

LONGEST_TOTAL_MS: Final = 300_000
"""Default of ``RAILBUS_TOTAL_MAX_MS``: no interactive request is open for longer."""

MAX_PRIORITY: Final = 9
"""The last of the priorities within a lane."""

DurationMs = Annotated[int, Meta(ge=1, le=86_400_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation.

    Attributes:
        role: Who wrote it.
        content: Its text, at most 262,144 code points.
    """

    role: MessageRole
    content: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the engine chooses tokens.

    Attributes:
        max_tokens: Longest answer, in tokens.
        temperature: 0 is greedy.
        top_p: Probability mass of nucleus sampling.
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
    """How much of the answer may be shown before it was checked.

    Attributes:
        mode: ``optimistic`` shows text at once, ``windowed`` holds back the newest, ``gated`` shows only cleared text.
        hold_tokens: ``windowed``: this many newest tokens wait until cleared; 0 turns this rule off.
        hold_ms: ``windowed``: text younger than this waits until cleared; 0 turns this rule off.
        max_exposure_tokens: At most this many tokens are shown beyond what is cleared.
    """

    mode: DeliveryMode = "optimistic"
    hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines in milliseconds since the request's receipt (see ``received_us``), except ``stall_ms``.

    Attributes:
        verdict_ms: The input rails' verdict must be on the log.
        ttft_ms: The first content token must be on the log.
        stall_ms: Longest pause between two chunks of an answer.
        total_ms: The request must be closed.
    """

    verdict_ms: DurationMs = 1_000
    ttft_ms: DurationMs = 200
    stall_ms: DurationMs = 2_000
    total_ms: DurationMs = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Event):
    """A prompt to answer. ``at`` is the time of receipt by its writer's clock, for people; no deadline counts from it.

    Attributes:
        model: Model asked for; ``default`` means the one that the generator serves.
        messages: The conversation, oldest first.
        sampling: How the engine chooses tokens.
        lane: ``interactive`` goes before ``batch``.
        service_class: Name of its class in the policy, which says what deadlines it may have and what the ledger holds
            it to. None, or a name that the policy does not have in this lane: the lane's own, ``chat`` or ``batch``.
        priority: Within the lane, 0 goes first, where the engine has priorities.
        attempt: 1 as received; the router republishes with 2 and more.
        delivery: How much may be shown before it was checked.
        deadlines: When verdict, first token and end are due.
        fallback: What a missed first-token deadline does: ``cancel`` attempt 1, ``race`` it, or nothing (``off``).
        egress: ``forbidden`` marks a prompt that must never leave the premises.
        waited_ms: How long before it was written it was received. Every deadline counts from that much before its
            append; of attempt 1, at most 10 seconds count.
    """

    model: Name = "default"
    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=256)]
    sampling: Sampling = field(default_factory=Sampling)
    lane: Lane = "interactive"
    service_class: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = 0
    attempt: Attempt = 1
    delivery: Delivery = field(default_factory=Delivery)
    deadlines: Deadlines = field(default_factory=Deadlines)
    fallback: Fallback = "cancel"
    egress: Egress = "allowed"
    waited_ms: Annotated[float, Meta(ge=0, le=86_400_000)] = 0.0


def received_us(request: Request, appended_us: int) -> int:
    """Return when a request was received, on the clock by which it was appended: its deadlines count from here.

    Times of day of two hosts are never compared. What the record claims is a duration, and bounded.
    """
    most_ms = MAX_WAITED_MS if request.attempt == 1 else request.deadlines.total_ms
    return appended_us - int(min(request.waited_ms, most_ms) * 1_000)
