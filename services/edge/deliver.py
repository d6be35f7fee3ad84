"""An open stream, delivered as an HTTP response: piece by piece, or whole."""

import asyncio
from typing import Final

from aiohttp import HttpVersion11, web

from services.edge.errors import ApiError
from services.edge.framing import SSE_COMMENT, http_chunk
from services.edge.outlet import Outlet
from services.edge.positions import CHAT_PREFIX
from services.edge.subscription import Subscription, is_set_within

HEADERS_S: Final = 2.0
"""The response begins with the first op, so that what fails before it gets its own status; or after so long."""

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
    request: web.Request, stream: Subscription, *, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    """Serve the stream until it ends or the client goes away."""
    headers = headers | {REQUEST_ID_HEADER: CHAT_PREFIX + stream.request.request_id}
    try:
        if stream.encoder.whole:
            return await _whole(stream, headers)
        return await _piecewise(request, stream, buffer_bytes, headers)
    finally:
        stream.end("gone")  # unless it has ended: the client went away


async def _whole(stream: Subscription, headers: dict[str, str]) -> web.Response:
    await stream.serve(None)
    if stream.encoder.error is not None:
        return error_response(stream.encoder.error, headers)
    return web.Response(body=stream.encoder.tail(), content_type="application/json", headers=headers)


async def _piecewise(
    request: web.Request, stream: Subscription, buffer_bytes: int, headers: dict[str, str]
) -> web.StreamResponse:
    if stream.history is None:
        await is_set_within(stream.started, HEADERS_S)
        if stream.refused is not None:
            return error_response(stream.refused, headers)
    response = web.StreamResponse(headers=headers | {"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        return response
    outlet = Outlet(transport, buffer_bytes, http_chunk if request.version >= HttpVersion11 else None)
    await stream.serve(outlet, SSE_COMMENT)
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
