"""HTTP responses: errors, and answers as server-sent events or as one body."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion11, web

from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.subscription import Subscription, is_set_within
from services.edge.encoders.sse import SSE_KEEPALIVE
from services.edge.errors import ApiError
from services.edge.log.positions import CHAT_ID_PREFIX

FIRST_OP_TIMEOUT_S: Final = 2.0
"""If no op comes for this many seconds, the head with status 200 is sent. A failure before that sets its own status."""

LAST_CHUNK: Final = b"0\r\n\r\n"

REQUEST_ID_HEADER: Final = "X-Request-Id"

COMMON_HEADERS: Final = {
    "Server": "railbus",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers that every response has."""


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status, body=error.envelope, content_type="application/json", headers={**retry, **(headers or {})}
    )


def raw_error(error: ApiError) -> bytes:
    """Format an error response for a request that reaches no handler.

    The caller must close the connection after sending the response.
    """
    headers = COMMON_HEADERS | {
        "Cache-Control": "no-store",
        "Content-Type": "application/json",
        "Content-Length": str(len(error.envelope)),
        "Connection": "close",
    }
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return _head(HTTPStatus(error.status), headers) + error.envelope


async def send_stream(
    request: web.Request, stream: Subscription, *, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    """Answer the request with the stream. Return when the stream has ended or the client has disconnected."""
    headers = headers | {REQUEST_ID_HEADER: CHAT_ID_PREFIX + stream.request.request_id}
    try:
        if stream.encoder.buffered:
            return await _send_whole(stream, headers)
        return await _send_events(request, stream, buffer_bytes, headers)
    finally:
        stream.end("gone")  # no effect if the stream has ended already


async def _send_whole(stream: Subscription, headers: dict[str, str]) -> web.Response:
    await stream.serve(None)
    if stream.encoder.error is not None:
        return error_response(stream.encoder.error, headers)
    stream.written_whole()
    return web.Response(body=stream.encoder.encode_end(), content_type="application/json", headers=headers)


async def _send_events(
    request: web.Request, stream: Subscription, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    response = EventStreamResponse(request, headers)
    transport = request.transport
    if transport is None:
        return response
    # Below this limit, uvloop sends written bytes only after all callbacks of the loop iteration: 1 to 2 ms later.
    transport.set_write_buffer_limits(high=0)
    writer = ClientWriter(
        transport, buffer_bytes, http_chunk if response.is_chunked else None, head=response.head,
        terminator=LAST_CHUNK if response.is_chunked else b"",
    )  # fmt: skip
    if stream.history is None:
        stream.attach(writer)  # now the task that reads the log writes the first bytes, without waiting for this task
        await is_set_within(stream.ended, FIRST_OP_TIMEOUT_S)
        if stream.early_error is not None:  # also if the stream ended just as the time was up
            return error_response(stream.early_error, headers)
    writer.begin()
    await stream.serve(writer, SSE_KEEPALIVE)
    response.ended_us = stream.ended_us
    await writer.close()
    return response


class EventStreamResponse(web.StreamResponse):
    """The response of a stream of events, written by a ``ClientWriter``.

    Attributes:
        head: The status line and the headers.
        is_chunked: Whether the body is chunked. If not, the body ends when the connection is closed.
        ended_us: When the last bytes were written, in microseconds since the epoch; None before that.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.ended_us: int | None = None
        self.is_chunked = request.version >= HttpVersion11
        self._stays_open = self.is_chunked and request.keep_alive
        if not self._stays_open:
            self.force_close()
        varying = {"Date": _date(int(time.time())), **headers}
        self.head = _stream_head(self.is_chunked, self._stays_open) + _header_lines(varying) + b"\r\n"

    @property
    def prepared(self) -> bool:
        return True  # so that the web framework sends no other response

    @property
    def keep_alive(self) -> bool:
        return self._stays_open and super().keep_alive is not False

    async def prepare(self, request: web.BaseRequest) -> None:
        pass  # a ``ClientWriter`` writes the head

    async def write_eof(self, data: bytes = b"") -> None:
        pass  # a ``ClientWriter`` writes the end of the body


def _head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() + _header_lines(headers) + b"\r\n"


def _header_lines(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


@cache
def _stream_head(is_chunked: bool, stays_open: bool) -> bytes:
    headers = COMMON_HEADERS | {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
    if is_chunked:
        headers["Transfer-Encoding"] = "chunked"
    if not stays_open:
        headers["Connection"] = "close"
    return b"HTTP/1.%d 200 OK\r\n" % is_chunked + _header_lines(headers)


@lru_cache(maxsize=2)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def http_chunk(data: bytes) -> bytes:
    """Format one chunk of a chunked body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
