"""One client connection. As in Kafka, its requests are handled one at a time."""

import asyncio
import logging
import struct
import time
from collections.abc import Callable
from typing import cast

from services.broker.protocol.responses import ApiResponse, CloseConnection, DeferredResponse
from services.broker.protocol.wire import MalformedRequest

logger = logging.getLogger("railbus.broker")

_SIZE = struct.Struct(">i")
_RESPONSE_HEADER = struct.Struct(">i4s")  # size of what follows, correlation id
_SMALLEST_REQUEST = 10  # bytes: API key, version, correlation id, a null client id
_MAX_BUFFERED_BYTES = 1024 * 1024  # of input, while a response is delayed
_JOIN_BELOW_BYTES = 64 * 1024  # a smaller response is joined with its header, which saves a system call

HandleFrame = Callable[[bytes, str], ApiResponse]


class KafkaConnection(asyncio.Protocol):
    def __init__(
        self,
        handle_frame: HandleFrame,
        opened: Callable[["KafkaConnection"], bool],
        closed: Callable[["KafkaConnection"], None],
        max_request_bytes: int,
    ) -> None:
        self._handle_frame = handle_frame
        self._opened = opened
        self._closed = closed
        self._max_request_bytes = max_request_bytes
        self._socket: asyncio.Transport | None = None  # None once the connection is lost
        self._transport: asyncio.Transport | None = None  # None once the connection is closing
        self._input = bytearray()
        self._pending: DeferredResponse | None = None
        self._writable = True
        self._reading = True
        self.peer = "?"
        self.host = "?"
        self.last_received_s = time.monotonic()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        if not self._opened(self):
            self._transport.close()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        self.last_received_s = time.monotonic()
        if not self._input and not self._busy and self._is_one_request(data):  # usual, and needs no copy
            self._handle_request(data[_SIZE.size :])
            return
        self._input += data
        self._serve_buffered()
        if self._busy and self._reading and len(self._input) > _MAX_BUFFERED_BYTES and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._serve_buffered()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause does not matter
        self._socket = self._transport = None
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._closed(self)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Serving

    @property
    def _busy(self) -> bool:
        return self._pending is not None or not self._writable

    def close(self, reason: str | None = None) -> None:
        """Close the connection after its buffered output is sent. If a reason is given, log it."""
        if self._transport is None:
            return
        if reason is not None:
            logger.warning("closed the connection from %s: %s", self.peer, reason)
        self._input.clear()
        self._transport.close()
        self._transport = None

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def _is_one_request(self, data: bytes) -> bool:
        size = len(data) - _SIZE.size
        return _SMALLEST_REQUEST <= size <= self._max_request_bytes and _SIZE.unpack_from(data)[0] == size

    def _serve_buffered(self) -> None:
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
            self._handle_request(frame)
        if self._transport is None:
            return
        del self._input[:position]
        if not self._busy and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _handle_request(self, frame: bytes) -> None:
        try:
            answer = self._handle_frame(frame, self.host)
        except (MalformedRequest, CloseConnection) as reason:
            self.close(str(reason))
            return
        except Exception:
            # A bug in a handler closes the connection of this client and affects no other client.
            logger.exception("a request from %s caused an error; its connection is closed", self.peer)
            self.close()
            return
        if answer is None:
            return
        correlation = frame[4:8]
        if isinstance(answer, DeferredResponse):
            if not answer.done:
                self._pending = answer
            answer.then(lambda body: self._answer_late(correlation, body))
        else:
            self._send(correlation, answer)

    def _answer_late(self, correlation: bytes, body: bytes) -> None:
        waited, self._pending = self._pending, None
        self._send(correlation, body)
        if waited is not None and (self._input or not self._reading):
            self._serve_buffered()

    def _send(self, correlation: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        head = _RESPONSE_HEADER.pack(len(correlation) + len(body), correlation)
        if len(body) < _JOIN_BELOW_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
