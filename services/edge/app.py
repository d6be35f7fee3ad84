"""The HTTP server around the handlers: who may come in, what an error looks like, which headers go out."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from services.edge.chat_api import ChatApi
from services.edge.deliver import error_response
from services.edge.errors import ApiError
from services.edge.origins import Origins
from services.edge.page import Pages
from services.edge.sockets import Sockets
from services.runtime.logging import logger
from services.runtime.metrics import EDGE_REFUSED

_log = logger("edge")

MAX_BODY: Final = 1_048_576
"""Bytes of a request's body (1 MiB)."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Asked by address, by whoever watches the process; they say nothing that is worth keeping."""

_HEADERS: Final = {
    "Server": "railbus",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(chat: ChatApi, sockets: Sockets, pages: Pages, origins: Origins) -> web.Application:
    """The application."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path not in PROBES:
                origins.check(request.headers.get("Host"), request.headers.get("Origin"))
            return await handler(request)
        except ApiError as error:
            return _refused(error)
        except web.HTTPException as error:
            return _refused(_in_words(error, request))
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - the client gets an answer, the log the traceback
            _log.exception("%s %s", request.method, request.match_info.route.resource)
            return _refused(ApiError(500, "A fault of this server.", code="internal"))

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY)
    app.add_routes([*chat.routes(), *sockets.routes(), *pages.routes()])
    app.on_response_prepare.append(_add_headers)
    return app


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")


def _refused(error: ApiError) -> web.Response:
    EDGE_REFUSED.labels(str(error.status)).inc()
    return error_response(error)


def _in_words(error: web.HTTPException, request: web.Request) -> ApiError:
    """What the web framework refused by itself, in our envelope."""
    if error.status == 404:
        return ApiError(404, f"There is nothing at {request.path[:200]}.", code="not_found")
    if error.status == 405:
        return ApiError(405, f"{request.method} is not possible at {request.path[:200]}.", code="method_not_allowed")
    if error.status == 413:
        return ApiError(413, f"The body is larger than {MAX_BODY:,} bytes.", code="request_too_large")
    return ApiError(error.status, error.reason, code="bad_request" if error.status < 500 else "internal")
