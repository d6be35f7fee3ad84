"""The fields of a chat request's body, except those that ``services.runtime.chat_body.ChatBody`` has."""

from typing import Final

import msgspec
from msgspec import Struct

from schemas.base import Name
from schemas.requests import Deadlines, Delivery, DeliveryMode, Egress, Fallback, Lane
from services.edge.encoders.chat_chunks import OnRestart
from services.runtime.chat_body import ChatBody


class StreamOptions(Struct):
    """Options of a streamed answer.

    Attributes:
        include_usage: Send the token counts in a last chunk.
    """

    include_usage: bool | None = None


class RailbusExtension(Struct, forbid_unknown_fields=True):
    """The body field ``railbus``, which OpenAI's API does not have.

    Attributes:
        delivery: How much unchecked text may be shown. It is the name of a delivery mode, or an object as in the event
            ``Request``.
        deadlines: Deadlines in milliseconds, as in the event ``Request``.
        fallback: What happens when the first token misses its deadline. ``cancel`` replaces attempt 1 by an attempt in
            the cloud, ``race`` starts an attempt in the cloud and lets attempt 1 continue, and ``off`` starts no
            attempt.
        egress: ``forbidden`` means that the prompt is not sent to a cloud model.
        lane: ``batch`` requests use only the capacity that interactive requests leave free.
        service_class: Name of a class in the policy. The class sets the deadlines and objectives of the request.
        restart: What an OpenAI-style stream does if another attempt takes over after text was sent. ``error``, the
            default, ends the stream with an error. ``marker`` sends a chunk with the op ``restart`` and continues with
            the new attempt's text.
    """

    delivery: DeliveryMode | Delivery | None = None
    deadlines: Deadlines | None = None
    fallback: Fallback | None = None
    egress: Egress | None = None
    lane: Lane | None = None
    service_class: Name | None = None
    restart: OnRestart | None = None


class ChatRequestBody(ChatBody):
    """A chat completion request. A field that is ``null`` counts as left out.

    Attributes:
        stream: Send the answer while it is generated, as server-sent events.
        stream_options: Options of a streamed answer.
        service_tier: ``flex`` selects the class ``batch``, unless the policy has a class ``flex``. ``auto``,
            ``default``, ``priority`` and ``scale`` select no class. Any other value is the name of a class.
        railbus: The fields that OpenAI's API does not have.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Name | None = None
    railbus: RailbusExtension | None = None


KNOWN_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(ChatRequestBody))

ACCEPTED_UNUSED: Final = frozenset(
    {
        "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "parallel_tool_calls",
    }
)  # fmt: skip
"""Parameters that are accepted and not used. Common clients send them, and they do not change the answer's text."""
