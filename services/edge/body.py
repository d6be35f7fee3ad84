"""The shapes a client may send. Bounds are those of the ``Request`` event, so what passes here fits there."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from schemas.base import Name
from schemas.requests import MAX_PROMPT_CHARS, Deadlines, Delivery, Egress, Fallback, Lane, Mode

Text = Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]
StopText = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=1, le=131_072)]
OnRestart = Literal["error", "marker"]


class TextPart(Struct, tag="text", tag_field="type"):
    """A piece of a message."""

    text: Text


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """What the assistant refused with, in an earlier turn."""

    refusal: Text


class Turn(Struct):
    """One message. ``developer`` is what newer clients call ``system``; ``name`` is taken and not used."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=256)]
    name: str | None = None


class StreamOptions(Struct):
    """What else to send on a stream."""

    include_usage: bool | None = None


class Extension(Struct, forbid_unknown_fields=True):
    """The extra body field ``railbus``.

    Attributes:
        delivery: How much may be seen before it was checked; a mode's name, or all of it.
        deadlines: By when.
        fallback: What a missed first-token deadline does.
        egress: ``forbidden`` keeps the prompt on the premises.
        lane: ``batch`` waits for the interactive ones.
        restart: What an OpenAI-style stream does when the answer starts anew after text was sent: end with an error
            (the default: text that was sent cannot be unsaid), or go on behind a chunk that says so in ``railbus``.
    """

    delivery: Mode | Delivery | None = None
    deadlines: Deadlines | None = None
    fallback: Fallback | None = None
    egress: Egress | None = None
    lane: Lane | None = None
    restart: OnRestart | None = None


class Body(Struct):
    """A chat completion request, as OpenAI's clients write it. ``null`` means the same as leaving a field out."""

    messages: Annotated[list[Turn], Meta(min_length=1, max_length=256)]
    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=8)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    railbus: Extension | None = None


KNOWN: Final = frozenset(field.name for field in msgspec.structs.fields(Body))

ACCEPTED_UNUSED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
"""Said by common clients, without effect on the answer's text: taken silently."""

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
"""Would change the answer and is not done here: refused by name, except with a value that asks for nothing."""
