"""The schema of a request's body. Its bounds are those of the ``Request`` event."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from schemas.base import Name
from schemas.requests import MAX_PROMPT_CHARS, Deadlines, Delivery, DeliveryMode, Egress, Fallback, Lane
from services.edge.encoders.chat_chunks import OnRestart

Text = Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]
StopText = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=1, le=131_072)]


class TextPart(Struct, tag="text", tag_field="type"):
    """A piece of a message.

    Attributes:
        text: Its text.
    """

    text: Text


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """A refusal by the assistant, in an earlier turn.

    Attributes:
        refusal: Its text.
    """

    refusal: Text


class ChatMessage(Struct):
    """One message.

    Attributes:
        role: Who speaks. ``developer`` means the same as ``system``.
        content: What is said, as text or as a list of text parts.
        name: Taken and not used.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=256)]
    name: str | None = None


class StreamOptions(Struct):
    """What else to send on a stream.

    Attributes:
        include_usage: Send token counts in a last chunk.
    """

    include_usage: bool | None = None


class RailbusExtension(Struct, forbid_unknown_fields=True):
    """The extra body field ``railbus``.

    Attributes:
        delivery: How much may be shown before it is checked: the name of a mode, or an object as in ``Request``.
        deadlines: By when, as in ``Request``.
        fallback: What a missed first-token deadline does.
        egress: ``forbidden`` keeps the prompt on the premises.
        lane: ``batch`` waits for interactive requests.
        service_class: Name of a class of the policy: which deadlines and objectives the request has.
        restart: What an OpenAI-style stream does when the answer starts anew after text was sent: ``error`` ends it
            (the default: such a stream cannot take text back), ``marker`` continues after a chunk that says so.
    """

    delivery: DeliveryMode | Delivery | None = None
    deadlines: Deadlines | None = None
    fallback: Fallback | None = None
    egress: Egress | None = None
    lane: Lane | None = None
    service_class: Name | None = None
    restart: OnRestart | None = None


class ChatRequestBody(Struct):
    """A chat completion request, as OpenAI's clients write it. ``null`` means the same as leaving a field out.

    Attributes:
        messages: The conversation, oldest first.
        model: The model that should answer; ``default`` is the one that the generator serves.
        stream: Send the answer as it comes, as server-sent events.
        stream_options: What else to send on a stream.
        max_tokens: Longest answer, in tokens.
        max_completion_tokens: The same, as newer clients call it.
        temperature: 0 always takes the likeliest token.
        top_p: Draw from the likeliest tokens that together have this probability.
        stop: Texts that end the answer. They are not part of it.
        seed: Makes sampling repeatable where the engine can.
        service_tier: ``flex`` is the class ``batch``; ``auto``, ``default``, ``priority`` and ``scale`` are the usual
            class; any other value is a class by its name.
        railbus: The fields that only Railbus has.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=256)]
    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=8)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    service_tier: Name | None = None
    railbus: RailbusExtension | None = None


KNOWN_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(ChatRequestBody))

ACCEPTED_UNUSED: Final = frozenset(
    {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
"""Sent by common clients, without effect on the answer's text: ignored silently."""

REFUSED_UNLESS: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, 1),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None, "none"),
}
"""Unsupported parameters that would change the answer: refused, except with these values, which have no effect."""
