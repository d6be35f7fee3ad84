"""Railbus's own format: every op as JSON with its place in the log as ``id``, for websockets and server-sent events."""

from collections.abc import Iterable
from typing import ClassVar, Final

import orjson

from services.edge.errors import ApiError
from services.edge.framing import sse, text_frame
from services.edge.session import CaughtUp, Piece, Session
from services.edge.tally import Sent

COMES_BACK: Final = frozenset({"slow_client", "server_stopping"})
"""What ends a connection and not the request: on a websocket the close code says it, and the client resumes."""


class OpEvents:
    """Writes ops as server-sent events.

    Attributes:
        error: Set when the stream must end with this error.
    """

    whole: ClassVar[bool] = False
    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: ApiError | None = None

    def encode(self, sent: Sent) -> bytes:
        """The event for one op."""
        return b"id: %d:%d:%d\ndata: %b\n\n" % (*sent.op_id, sent.line)

    def catch_up(self, caught_up: CaughtUp) -> Iterable[Piece]:
        """The events for a history; one with text taken back is one event, so that it arrives all or none."""
        if caught_up.whole or not caught_up.ops:
            return (((sent,), self.encode(sent)) for sent in caught_up.ops)
        return [(caught_up.ops, sse(batch(caught_up), str(caught_up.ops[-1].op_id).encode()))]

    def tail(self) -> bytes:
        """What ends the stream: nothing, or its error."""
        return b"" if self.error is None else sse(self.error.envelope)


class OpFrames:
    """Writes ops as websocket text frames: ``{"request_id":..., "id":..., "op":...}``.

    Attributes:
        error: Set when the request's stream must end with this error.
    """

    whole: ClassVar[bool] = False
    __slots__ = ("_head", "error")

    def __init__(self, session: Session) -> None:
        self.error: ApiError | None = None
        self._head = b'{"request_id":"%b","id":"' % session.request_id.encode()

    def encode(self, sent: Sent) -> bytes:
        """The frame for one op."""
        return text_frame(b'%b%d:%d:%d",%b' % (self._head, *sent.op_id, sent.line[1:]))

    def catch_up(self, caught_up: CaughtUp) -> Iterable[Piece]:
        """The frames for a history; one with text taken back is one frame."""
        if caught_up.whole or not caught_up.ops:
            return (((sent,), self.encode(sent)) for sent in caught_up.ops)
        last = caught_up.ops[-1].op_id
        return [(caught_up.ops, text_frame(b'%b%d:%d:%d",%b' % (self._head, *last, batch(caught_up)[1:])))]

    def tail(self) -> bytes:
        """What ends the request's stream: nothing (its ``close`` op did), or its error."""
        if self.error is None or self.error.code in COMES_BACK:
            return b""
        body = orjson.dumps({"type": "error", "error": self.error.body})
        return text_frame(self._head[: -len(b'"id":"')] + body[1:])


def batch(caught_up: CaughtUp) -> bytes:
    """Several ops that belong together, as one."""
    return b'{"op":"catch_up","ops":[%b]}' % b",".join(sent.line for sent in caught_up.ops)
