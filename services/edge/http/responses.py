"""HTTP responses: errors, and open streams as server-sent events or as one body."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.http import StreamWriter

from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.subscription import Subscription, is_set_within
from services.edge.encoders.sse import SSE_KEEPALIVE
from services.edge.errors import ApiError
from services.edge.log.positions import CHAT_ID_PREFIX

FIRST_OP_TIMEOUT_S: Final = 2.0
"""Longest wait for the first op: until then a failure still gets its own HTTP status."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Longest time for a client to read the last bytes."""

LAST_CHUNK: Final = b"0\r\n\r\n"

REQUEST_ID_HEADER: Final = "X-Request-Id"

COMMON_HEADERS: Final = {
    "Server": "railbus",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response."""


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status, body=error.envelope, content_type="application/json", headers={**retry, **(headers or {})}
    )


def raw_error(error: ApiError) -> bytes:
    """Format the last response of a connection whose request will not be handled."""
    headers = COMMON_HEADERS | {
        "Cache-Control": "no-store",
        "Content-Type": "application/json",
        "Content-Length": str(len(error.envelope)),
        "Connection": "close",
    }
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + error.envelope


async def send_stream(
    request: web.Request, stream: Subscription, *, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    """Serve the stream until it ends or the client disconnects."""
    headers = headers | {REQUEST_ID_HEADER: CHAT_ID_PREFIX + stream.request.request_id}
    try:
        if stream.encoder.buffered:
            return await _send_whole(stream, headers)
        return await _send_events(request, stream, buffer_bytes, headers)
    finally:
        stream.end("gone")  # no effect if it has ended already


async def _send_whole(stream: Subscription, headers: dict[str, str]) -> web.Response:
    await stream.serve(None)
    if stream.encoder.error is not None:
        return error_response(stream.encoder.error, headers)
    stream.written_whole()
    return web.Response(body=stream.encoder.encode_end(), content_type="application/json", headers=headers)


async def _send_events(
    request: web.Request, stream: Subscription, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    if stream.history is None:
        await is_set_within(stream.started, FIRST_OP_TIMEOUT_S)
        if stream.early_error is not None:
            return error_response(stream.early_error, headers)
    response = web.StreamResponse(headers=headers | {"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        return response
    # Below the limit uvloop keeps what is written until all callbacks of its turn have run: a millisecond or two.
    transport.set_write_buffer_limits(high=0)
    if request.version >= HttpVersion11:
        _frame_ourselves(request)
        writer = ClientWriter(transport, buffer_bytes, http_chunk, LAST_CHUNK)
    else:
        writer = ClientWriter(transport, buffer_bytes)
    await stream.serve(writer, SSE_KEEPALIVE)
    if not await _finish(response):
        transport.abort()
    return response


def http_chunk(data: bytes) -> bytes:
    """Format one chunk of a chunked body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame_ourselves(request: web.Request) -> None:
    """Keep the web framework from ending the chunked body: the last write does."""
    if not isinstance(request.writer, StreamWriter):
        raise TypeError("the response must be written by aiohttp's StreamWriter")
    request.writer.chunked = False


async def _finish(response: web.StreamResponse) -> bool:
    """End the response; return False when the client does not read it in time."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await response.write_eof()
    except TimeoutError:
        return False
    except ConnectionError:
        return True  # the connection is closed: nothing to abort
    return True
