"""An open stream, delivered as an HTTP response: piece by piece, or whole."""

import asyncio
from typing import Final

from aiohttp import HttpVersion11, web

from services.edge.errors import ApiError
from services.edge.framing import SSE_COMMENT, http_chunk
from services.edge.outlet import Outlet
from services.edge.positions import CHAT_PREFIX
from services.edge.visits import Arrival

HEADERS_S: Final = 2.0
"""The response begins with the first op, so that what fails before it gets its own status; or after so long."""

COMMENT_S: Final = 15.0
"""A stream that is silent for so long gets a comment, so that nothing in between takes it for dead."""

LINGER_S: Final = 10.0
"""Longest time for a client to take the last bytes."""

REQUEST_ID_HEADER: Final = "X-Request-Id"


def error_response(error: ApiError, headers: dict[str, str] | None = None) -> web.Response:
    """The error as JSON."""
    retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status, body=error.envelope, content_type="application/json", headers=retry | (headers or {})
    )


async def deliver(
    request: web.Request, arrival: Arrival, *, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    """Serve the stream until it ends or the client goes away."""
    stream = arrival.stream
    headers = headers | {REQUEST_ID_HEADER: CHAT_PREFIX + stream.request.request_id}
    try:
        if stream.writer.whole:
            return await _whole(arrival, headers)
        return await _piecewise(request, arrival, buffer_bytes, headers)
    except asyncio.CancelledError:
        stream.end("gone")
        raise


async def _whole(arrival: Arrival, headers: dict[str, str]) -> web.Response:
    stream = arrival.stream
    if arrival.history is not None:
        await stream.catch_up(arrival.history, arrival.history_end)
    await stream.ended.wait()
    if stream.writer.error is not None:
        return error_response(stream.writer.error, headers)
    return web.Response(body=stream.writer.tail(), content_type="application/json", headers=headers)


async def _piecewise(
    request: web.Request, arrival: Arrival, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    stream = arrival.stream
    if arrival.history is None:
        await _within(stream.started, HEADERS_S)
        if stream.refused is not None:
            return error_response(stream.refused, headers)
    response = web.StreamResponse(headers=headers | {"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        stream.end("gone")
        return response
    outlet = Outlet(transport, buffer_bytes, http_chunk if request.version >= HttpVersion11 else None)
    stream.attach(outlet)
    if arrival.history is not None:
        await stream.catch_up(arrival.history, arrival.history_end)
    while not await _within(stream.ended, COMMENT_S):
        stream.remark(SSE_COMMENT, COMMENT_S)
    if not await _written(response):
        transport.abort()
    return response


async def _written(response: web.StreamResponse) -> bool:
    """End the response; False when the client does not take it."""
    try:
        async with asyncio.timeout(LINGER_S):
            await response.write_eof()
    except TimeoutError:
        return False
    except ConnectionError:
        return True  # nobody is there to abort
    return True


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
