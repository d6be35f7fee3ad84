"""Fields of a request's body other than those that decide about the answer (``services.runtime.chat_body``)."""

from typing import Final

import msgspec
from msgspec import Struct

from schemas.base import Name
from schemas.requests import Deadlines, Delivery, DeliveryMode, Egress, Fallback, Lane
from services.edge.encoders.chat_chunks import OnRestart
from services.runtime.chat_body import ChatBody


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


class ChatRequestBody(ChatBody):
    """A chat completion request. ``null`` means the same as leaving a field out.

    Attributes:
        stream: Send the answer as it comes, as server-sent events.
        stream_options: What else to send on a stream.
        service_tier: ``flex`` is the class ``batch``; ``auto``, ``default``, ``priority`` and ``scale`` are the usual
            class; any other value is a class by its name.
        railbus: The fields that only Railbus has.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Name | None = None
    railbus: RailbusExtension | None = None


KNOWN_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(ChatRequestBody))

ACCEPTED_UNUSED: Final = frozenset(
    {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
"""Sent by common clients, without effect on the answer's text: ignored silently."""
