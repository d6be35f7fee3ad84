"""The ``Request`` event: a prompt to answer, with its options and deadlines."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from schemas.base import Attempt, Event, Name

MessageRole = Literal["system", "user", "assistant"]
Lane = Literal["interactive", "batch"]
DeliveryMode = Literal["optimistic", "windowed", "gated"]
Fallback = Literal["cancel", "race", "off"]
Egress = Literal["allowed", "forbidden"]

MAX_PROMPT_CHARS = 262_144
"""Maximum number of code points of a message. Even with 3 bytes per character, such a message is below the broker's
record limit."""

MAX_WAITED_MS = 10_000
"""For attempt 1, a larger ``waited_ms`` counts as this value. So a writer can make deadlines only this much earlier."""

LONGEST_TOTAL_MS: Final = 300_000
"""Default of ``RAILBUS_TOTAL_MAX_MS``, the longest total deadline of an interactive request, in milliseconds."""

MAX_PRIORITY: Final = 9
"""The highest priority number within a lane. Requests with this number are served last."""

DurationMs = Annotated[int, Meta(ge=1, le=86_400_000)]


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of the conversation.

    Attributes:
        role: Who wrote the message.
        content: The message's text, at most 262,144 code points.
    """

    role: MessageRole
    content: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the engine chooses tokens.

    Attributes:
        max_tokens: Maximum length of the answer, in tokens.
        temperature: Temperature of sampling; 0 means greedy decoding.
        top_p: Probability mass of nucleus sampling.
        seed: Seed that makes sampling repeatable, if the engine supports it.
        stop: Strings that end the answer. They are not part of the answer.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=131_072)] = 512
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.7
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=8)] = ()


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much of the answer may be shown before it is checked.

    Attributes:
        mode: ``optimistic`` shows text at once, ``windowed`` holds back the newest text, ``gated`` shows only checked
            text.
        hold_tokens: In ``windowed`` mode, the number of newest tokens that are hidden until they are checked; 0 turns
            this rule off.
        hold_ms: In ``windowed`` mode, text younger than this is hidden until it is checked; 0 turns this rule off.
        max_exposure_tokens: Maximum number of shown tokens that are not checked yet.
    """

    mode: DeliveryMode = "optimistic"
    hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 64


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Deadlines of a request, in milliseconds. All but ``stall_ms`` count from the receipt of the request.

    Attributes:
        verdict_ms: Time until the verdict must be on the log.
        ttft_ms: Time until the first token must be on the log.
        stall_ms: Maximum pause between two chunks of an answer.
        total_ms: Time until the request must be closed.
    """

    verdict_ms: DurationMs = 1_000
    ttft_ms: DurationMs = 200
    stall_ms: DurationMs = 2_000
    total_ms: DurationMs = 60_000


class Request(Event, frozen=True, kw_only=True):
    """A prompt to answer. ``at`` is when the request was received, by the clock of the program that wrote attempt 1.

    Attributes:
        model: The requested model; ``default`` means the model that the generator serves.
        messages: The conversation, oldest first.
        sampling: How the engine chooses tokens.
        lane: ``interactive`` or ``batch``. Interactive requests are served first.
        service_class: Name of the request's class in the policy. If None, the policy chooses a class by tenant or by
            model. The default class of the lane, ``chat`` or ``batch``, replaces a class that is unknown, of another
            lane, or not allowed for the request.
        priority: Priority within the lane, if the engine has priorities; 0 is served first.
        attempt: Number of the attempt that this record starts; 1 for a new request.
        delivery: How much of the answer may be shown before it is checked.
        deadlines: Time limits for the verdict, the first token, each pause between chunks, and the whole request.
        fallback: What happens if the first-token deadline is missed. ``cancel`` replaces attempt 1 by an attempt in the
            cloud, ``race`` runs both attempts, ``off`` starts no attempt in the cloud.
        egress: ``forbidden`` marks a prompt that must never leave the premises.
        waited_ms: Time from the receipt of the request until this record was written, in milliseconds. Deadlines count
            from the record's append time minus ``waited_ms``. At most 10,000 ms are subtracted for attempt 1, and at
            most ``total_ms`` for later attempts.
    """

    model: Name = "default"
    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=256)]
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    lane: Lane = "interactive"
    service_class: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = 0
    attempt: Attempt = 1
    delivery: Delivery = msgspec.field(default_factory=Delivery)
    deadlines: Deadlines = msgspec.field(default_factory=Deadlines)
    fallback: Fallback = "cancel"
    egress: Egress = "allowed"
    waited_ms: Annotated[float, Meta(ge=0, le=86_400_000)] = 0.0


def received_us(request: Request, appended_us: int) -> int:
    """Return the time at which a request was received, in microseconds since the epoch.

    The deadlines count from this time.

    The result is ``appended_us``, the append time of the request's record, minus ``Request.waited_ms``. For
    attempt 1, at most ``MAX_WAITED_MS`` are subtracted; for later attempts, at most the total deadline.
    """
    most_ms = MAX_WAITED_MS if request.attempt == 1 else request.deadlines.total_ms
    return appended_us - int(min(request.waited_ms, most_ms) * 1_000)
