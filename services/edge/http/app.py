"""The HTTP application: routes, middleware for checks and errors, and common response headers."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import HttpVersion11, web
from aiohttp.http import HttpProcessingError

from services.edge.errors import ApiError
from services.edge.http.access.origins import OriginGuard
from services.edge.http.batch_endpoint import BatchEndpoint
from services.edge.http.chat_endpoint import ChatEndpoint
from services.edge.http.connections import handler_of
from services.edge.http.ledger_endpoint import LedgerEndpoint
from services.edge.http.page import PageEndpoint
from services.edge.http.request_body import MAX_BODY_BYTES, body_too_large
from services.edge.http.responses import COMMON_HEADERS, EventStreamResponse, error_response
from services.edge.http.status import PROBE_PATHS, StatusEndpoint
from services.edge.http.websockets import WebSocketEndpoint
from services.runtime.logging import logger
from services.runtime.metrics import EDGE_REFUSED

_log = logger("edge")

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    chat: ChatEndpoint, sockets: WebSocketEndpoint, status: StatusEndpoint, page: PageEndpoint, ledger: LedgerEndpoint,
    batches: BatchEndpoint, origins: OriginGuard,
) -> web.Application:  # fmt: skip
    @web.middleware
    async def limit(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        connection = handler_of(request)
        written_us: int | None = None
        try:
            response = await handler(request)
            if isinstance(response, EventStreamResponse):
                written_us = response.ended_us
            if connection.is_refused and not response.prepared:
                response.force_close()
            return response
        finally:
            connection.end(written_us)

    @web.middleware
    async def guard(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        try:
            handler_of(request).begin(request)
            if request.path not in PROBE_PATHS:
                origins.check(request.headers.get("Host"), request.headers.get("Origin"))
            return await handler(request)
        except ApiError as error:
            return _to_response(error)
        except web.HTTPException as error:
            return _to_response(_as_api_error(error, request), _allowed_methods(error))
        except web.RequestPayloadError:  # such as a malformed chunk
            return _to_response(ApiError(400, "The body could not be read.", code="invalid_body"))
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - the client gets an error response, and the service's log the traceback
            _log.exception("%s %s", request.method, request.match_info.route.resource)
            return _to_response(ApiError(500, "The server failed to handle the request.", code="internal"))

    app = web.Application(middlewares=[limit, guard], client_max_size=MAX_BODY_BYTES)
    routes = [*chat.routes(), *sockets.routes(), *status.routes(), *page.routes(), *ledger.routes(), *batches.routes()]
    for route in routes:
        route.kwargs["expect_handler"] = _expect
    app.add_routes(routes)
    app.on_response_prepare.append(_add_headers)
    return app


_CLIENT_ERRORS: Final = (HttpProcessingError, web.RequestPayloadError, UnicodeEncodeError, ConnectionError)
"""Errors that clients cause outside of handlers: malformed HTTP, undecodable bytes in a header, and disconnects."""


class ServerLogger(logging.LoggerAdapter[logging.Logger]):
    """The web server's logger. An error that a client caused becomes a debug message without a traceback."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        if isinstance(exc_info, _CLIENT_ERRORS):
            if not isinstance(exc_info, ConnectionError):
                EDGE_REFUSED.labels("400").inc()
            self.debug("malformed HTTP or a disconnect: %s", type(exc_info).__name__)
        else:
            super().exception(msg, *args, exc_info=exc_info, **kwargs)


async def _expect(request: web.Request) -> web.Response | None:
    if request.headers["Expect"].lower() != "100-continue":
        return _to_response(ApiError(417, "Expect may only be 100-continue.", code="invalid_header", param="Expect"))
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # so that the framework still sends a whole response after an error
    return None


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in COMMON_HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")


def _to_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    EDGE_REFUSED.labels(str(error.status)).inc()
    return error_response(error, headers)


def _allowed_methods(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if error.status == 405 else {}


def _as_api_error(error: web.HTTPException, request: web.Request) -> ApiError:
    if error.status == 404:
        return ApiError(404, f"There is nothing at {request.path[:200]}.", code="not_found")
    if error.status == 405:
        return ApiError(405, f"{request.method} is not possible at {request.path[:200]}.", code="method_not_allowed")
    if error.status == 413:
        return body_too_large()
    return ApiError(error.status, error.reason, code="bad_request" if error.status < 500 else "internal")
