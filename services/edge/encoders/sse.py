"""Encode ops as server-sent events. An op is an instruction to a client, such as to show text."""

from collections.abc import Iterable
from typing import ClassVar, Final

from services.edge.delivery.session import CatchUpOps, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.errors import ApiError

SSE_KEEPALIVE: Final = b": still here\n\n"
"""A comment line of server-sent events, which clients ignore."""


def sse_event(data: bytes, event_id: bytes | None = None) -> bytes:
    """Format one event. ``data`` must not contain a newline."""
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %b\ndata: %b\n\n" % (event_id, data)


class SseEncoder:
    """Encodes each op as a server-sent event.

    The event's id is the op's position: the partition and offset of the record, and the op's number among the ops of
    this record.
    """

    buffered: ClassVar[bool] = False
    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: ApiError | None = None

    def encode(self, item: PositionedOp) -> bytes:
        return b"id: %d:%d:%d\ndata: %b\n\n" % (*item.op_id, item.line)

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        if caught_up.splittable or not caught_up.ops:
            return (((item,), self.encode(item)) for item in caught_up.ops)
        return [(caught_up.ops, sse_event(catch_up_json(caught_up), str(caught_up.ops[-1].op_id).encode()))]

    def encode_end(self) -> bytes:
        return b"" if self.error is None else sse_event(self.error.envelope)


def catch_up_json(caught_up: CatchUpOps) -> bytes:
    return b'{"op":"catch_up","ops":[%b]}' % b",".join(item.line for item in caught_up.ops)
