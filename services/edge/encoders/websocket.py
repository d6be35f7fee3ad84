"""Encode ops as websocket text frames."""

from collections.abc import Iterable
from typing import ClassVar, Final

import orjson

from services.edge.delivery.session import CatchUpOps, DeliverySession, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.encoders.sse import catch_up_json
from services.edge.errors import ApiError

RESUMABLE_CODES: Final = frozenset({"slow_client", "server_stopping"})
"""Codes of errors that end the connection. The close frame reports them, and the client can resume its requests."""


# The web framework's functions for frames are coroutines. With these functions, an op needs one plain write.
def text_frame(payload: bytes) -> bytes:
    """Format a text message as one unmasked frame (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def pong_frame(payload: bytes) -> bytes:
    """Format a pong frame. The payload may have at most 125 bytes (RFC 6455, section 5.5)."""
    return b"\x8a%c%b" % (len(payload), payload)


def close_frame(code: int, reason: bytes) -> bytes:
    """Format a close frame. The reason may have at most 123 bytes (RFC 6455, section 5.5.1)."""
    return b"\x88%c%b%b" % (2 + len(reason), code.to_bytes(2, "big"), reason)


class WebSocketEncoder:
    """Encodes each op as a text frame with the JSON ``{"request_id":..., "id":..., "op":...}``."""

    buffered: ClassVar[bool] = False
    __slots__ = ("_head", "error")

    def __init__(self, session: DeliverySession) -> None:
        self.error: ApiError | None = None
        self._head = b'{"request_id":"%b","id":"' % session.request_id.encode()

    def encode(self, item: PositionedOp) -> bytes:
        return text_frame(b'%b%d:%d:%d",%b' % (self._head, *item.op_id, item.line[1:]))

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        if caught_up.splittable or not caught_up.ops:
            return (((item,), self.encode(item)) for item in caught_up.ops)
        last = caught_up.ops[-1].op_id
        return [(caught_up.ops, text_frame(b'%b%d:%d:%d",%b' % (self._head, *last, catch_up_json(caught_up)[1:])))]

    def encode_end(self) -> bytes:
        if self.error is None or self.error.code in RESUMABLE_CODES:
            return b""
        body = orjson.dumps({"type": "error", "error": self.error.body})
        return text_frame(self._head[: -len(b'"id":"')] + body[1:])
