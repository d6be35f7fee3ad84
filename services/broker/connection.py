"""One client's connection: frames in, frames out, one request at a time, as Kafka does.

A request that waits (a long fetch, a join) holds up the requests behind it on the same connection and nobody else.
Bounds: a frame by `max_request_bytes`; unread input by what is buffered while a request waits; unsent output by the
transport's high-water mark, past which no further request of this client is served.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable
from typing import cast

from services.broker.later import Later
from services.broker.request import Answered, CloseConnection
from services.broker.wire import Malformed

logger = logging.getLogger("railbus.broker")

_SIZE = struct.Struct(">i")
_SMALLEST_REQUEST = 10  # key, version, correlation id, a null client id
_HELD_BYTES = 1024 * 1024  # of input, while a request waits
_JOIN_BELOW_BYTES = 64 * 1024  # smaller answers are copied behind their header to save a system call

Serve = Callable[[bytes, str], Answered]


class Connection(asyncio.Protocol):
    """The protocol object of one connection."""

    def __init__(self, serve: Serve, opened: Callable[["Connection"], bool], closed: Callable[["Connection"], None], *,
                 max_request_bytes: int) -> None:  # fmt: skip
        self._serve = serve
        self._opened = opened
        self._closed = closed
        self._max_request_bytes = max_request_bytes
        self._socket: asyncio.Transport | None = None  # until it is closed for good
        self._transport: asyncio.Transport | None = None  # until it is being closed
        self._input = bytearray()
        self._waiting: Later | None = None
        self._writable = True
        self._reading = True
        self.peer = "?"
        self.host = "?"
        self.last_heard_s = time.monotonic()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._socket = self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        if not self._opened(self):
            self._transport.close()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self.last_heard_s = time.monotonic()
        self._input += data
        self._serve_buffered()
        if self._busy and self._reading and len(self._input) > _HELD_BYTES and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable = True
        self._serve_buffered()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        """The client is gone, and with it what waits for it."""
        self._socket = self._transport = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._closed(self)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Serving

    @property
    def _busy(self) -> bool:
        return self._waiting is not None or not self._writable

    def close(self, reason: str | None = None) -> None:
        """Close it, with one line in the log when there is a reason."""
        if self._transport is None:
            return
        if reason is not None:
            logger.warning("closed the connection from %s: %s", self.peer, reason)
        self._input.clear()
        self._transport.close()
        self._transport = None

    def abort(self) -> None:
        """Close it without waiting for the client to take what was sent."""
        if self._socket is not None:
            self._socket.abort()

    def _serve_buffered(self) -> None:
        """Serve every whole request that is here, until one has to wait."""
        position, buffered = 0, len(self._input)
        while not self._busy and self._transport is not None and buffered - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._input, position)
            if not _SMALLEST_REQUEST <= size <= self._max_request_bytes:
                self.close(
                    f"a request of {size} bytes is not between {_SMALLEST_REQUEST} and {self._max_request_bytes}"
                )
                return
            begin = position + _SIZE.size
            if buffered - begin < size:
                break
            position = begin + size
            with memoryview(self._input) as view:
                frame = view[begin:position].tobytes()
            self._handle(frame)
        if self._transport is None:
            return
        del self._input[:position]
        if not self._busy and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _handle(self, frame: bytes) -> None:
        try:
            answer = self._serve(frame, self.host)
        except (Malformed, CloseConnection) as reason:
            self.close(str(reason))
            return
        except Exception:
            # A mistake of ours must cost one client its connection and nobody else anything.
            logger.exception("a request from %s could not be answered", self.peer)
            self.close()
            return
        if answer is None:
            return
        correlation = frame[4:8]
        if isinstance(answer, Later):
            if not answer.done:
                self._waiting = answer
            answer.then(lambda body: self._answer_late(correlation, body))
        else:
            self._send(correlation, answer)

    def _answer_late(self, correlation: bytes, body: bytes) -> None:
        waited, self._waiting = self._waiting, None
        self._send(correlation, body)
        if waited is not None:
            self._serve_buffered()

    def _send(self, correlation: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        head = _SIZE.pack(len(body) + len(correlation)) + correlation
        if len(body) < _JOIN_BELOW_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
