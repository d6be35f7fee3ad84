"""Server-sent events: the wire format, and Railbus's own stream of ops in it. Pure."""

from collections.abc import Iterable
from typing import ClassVar, Final

from services.edge.delivery.session import CatchUpOps, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.errors import ApiError

SSE_KEEPALIVE: Final = b": still here\n\n"
"""A comment; clients ignore it."""


def sse_event(data: bytes, event_id: bytes | None = None) -> bytes:
    """Format one event; ``data`` is one line."""
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %b\ndata: %b\n\n" % (event_id, data)


class SseEncoder:
    """Ops as server-sent events: each op's JSON, with its position in the log as the event id.

    Attributes:
        error: The error that ends the stream; None while there is none.
    """

    buffered: ClassVar[bool] = False
    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: ApiError | None = None

    def encode(self, item: PositionedOp) -> bytes:
        return b"id: %d:%d:%d\ndata: %b\n\n" % (*item.op_id, item.line)

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        """Encode a history; ops that must arrive together become one event."""
        if caught_up.splittable or not caught_up.ops:
            return (((item,), self.encode(item)) for item in caught_up.ops)
        return [(caught_up.ops, sse_event(catch_up_json(caught_up), str(caught_up.ops[-1].op_id).encode()))]

    def encode_end(self) -> bytes:
        """Encode the error, if any. A stream without an error has ended with the op ``close``."""
        return b"" if self.error is None else sse_event(self.error.envelope)


def catch_up_json(caught_up: CatchUpOps) -> bytes:
    """Wrap ops that belong together in one ``catch_up`` op."""
    return b'{"op":"catch_up","ops":[%b]}' % b",".join(item.line for item in caught_up.ops)
