"""Limits for the open connections of the HTTP server, and deadlines by which a client must send something."""

import asyncio
import select
import ssl
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import InvalidURLError

from services.edge.delivery.client_writer import CLOSE_TIMEOUT_S
from services.edge.encoders.websocket import close_frame
from services.edge.errors import ApiError
from services.edge.http.access.proxies import TrustedProxies
from services.edge.http.arrival import TimedProtocol, request_timestamps
from services.edge.http.body_room import BodyRoom, BodyTurn, too_many_bytes
from services.edge.http.connection_table import (
    CONNECTION_KINDS,
    PROXIED,
    ConnectionAdmission,
    ConnectionTable,
    Refusal,
    Wait,
)
from services.edge.http.responses import COMMON_HEADERS, error_response, raw_error
from services.edge.http.status import PROBE_PATHS
from services.edge.requests.parse import ArrivalTimes
from services.edge.settings import Settings
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.runtime.metrics import EDGE_BODY_BYTES, EDGE_CONNECTIONS, EDGE_REFUSED

_log = logger("edge")

LAST_WORDS_S: Final = 1.0
"""Seconds that a client has to read why its connection is closed. After that time, the connection is aborted."""

POLICY_VIOLATION: Final = 1008
TRY_AGAIN_LATER: Final = 1013

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)  # Linux; other systems report only broken connections

_LIMITS: Final[dict[Refusal, tuple[str, str]]] = {
    "address": ("one address has as many connections open", "RAILBUS_MAX_ADDRESS_CONNECTIONS"),
    "total": ("as many connections are open", "RAILBUS_MAX_CONNECTIONS"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTimeouts:
    """How long the server waits for a client, in seconds.

    Attributes:
        request_s: Time for the head of the first request, and for each body.
        hello_s: Time for the first valid message on a websocket.
        next_s: Time from a response until the next request on the same connection.
    """

    request_s: float
    hello_s: float
    next_s: float

    @classmethod
    def of(cls, settings: Settings) -> "ConnectionTimeouts":
        return cls(
            request_s=settings.request_timeout_ms / 1_000,
            hello_s=settings.hello_timeout_ms / 1_000,
            next_s=settings.idle_timeout_ms / 1_000,
        )

    def seconds(self, what: Wait) -> float:
        match what:
            case "request" | "body":
                return self.request_s
            case "hello":
                return self.hello_s
            case "next":
                return self.next_s


_NO_PROXIES: Final = TrustedProxies()


class Connections:
    def __init__(
        self, max_connections: int, max_per_address: int, max_body_bytes: int, timeouts: ConnectionTimeouts,
        proxies: TrustedProxies = _NO_PROXIES,
    ) -> None:  # fmt: skip
        self.proxies = proxies
        self.bodies: BodyRoom[LimitedHandler] = BodyRoom(max_body_bytes, self._drop)
        EDGE_BODY_BYTES.set_function(lambda: self.bodies.total)
        self._table: ConnectionTable[LimitedHandler] = ConnectionTable(max_connections, max_per_address)
        self._timeouts = timeouts
        self._closing: dict[LimitedHandler, tuple[asyncio.Transport, float]] = {}
        self._logged: set[Refusal] = set()

    @property
    def handshake_s(self) -> float:
        return self._timeouts.request_s

    def open(self, handler: "LimitedHandler", address: str, now_s: float) -> None:
        """Count a new connection.

        At a limit, close the connection that has waited longest for its client. If none waits, refuse the new
        connection. ``ConnectionTable`` has the exact rule.
        """
        counted = PROXIED if self.proxies.trusts(address) else address
        self._make_room(self._table.open(handler, counted, now_s + self._timeouts.request_s), now_s)

    def move(self, handler: "LimitedHandler", address: str, now_s: float) -> Refusal | None:
        """Count a trusted proxy's connection for the client at ``address``, or for no client (``PROXIED``).

        At the client's limit, close the client's connection that has waited longest. If none waits, return the limit.
        In all other cases, return None.
        """
        admission = self._table.move(handler, address)
        self._make_room(admission, now_s)
        return admission.refusal

    def upgrade(self, handler: "LimitedHandler") -> None:
        self._table.upgrade(handler)

    def _make_room(self, admission: ConnectionAdmission["LimitedHandler"], now_s: float) -> None:
        if admission.over is None:
            return
        if admission.evicted is not None:
            self._close(*admission.evicted, too_many(admission.over), now_s)
        if admission.over not in self._logged:
            self._logged.add(admission.over)
            _log.warning("%s as %s allows: new ones replace idle ones", *_LIMITS[admission.over])

    def lost(self, handler: "LimitedHandler") -> None:
        self._table.close(handler)
        self.bodies.forget(handler)
        self._closing.pop(handler, None)

    def wait(self, handler: "LimitedHandler", what: Wait, now_s: float) -> None:
        self._table.wait(handler, what, now_s + self._timeouts.seconds(what))

    def busy(self, handler: "LimitedHandler") -> None:
        self._table.busy(handler)

    def refusal(self, handler: "LimitedHandler") -> Refusal | None:
        return self._table.refusal(handler)

    def answered(self, handler: "LimitedHandler", now_s: float) -> None:
        """Start the time limit within which the next request must arrive on the connection."""
        transport = handler.transport
        if transport is not None and transport.is_closing():
            self._closing[handler] = transport, now_s + CLOSE_TIMEOUT_S
        self.wait(handler, "next", now_s)

    def tick(self, now_s: float) -> None:
        for handler, what in self._table.expire(now_s):
            self._close(handler, what, _too_late(what, self._timeouts.seconds(what)), now_s)
        for handler, (transport, until_s) in list(self._closing.items()):
            if until_s <= now_s:
                del self._closing[handler]
                transport.abort()
        for handler in tuple(self._table):
            handler.abort_if_client_left()
        kinds = self._table.kinds()
        for kind in CONNECTION_KINDS:
            EDGE_CONNECTIONS.labels(kind).set(kinds[kind])

    def _drop(self, handler: "LimitedHandler") -> None:
        self._table.close(handler)
        handler.let_go_of_messages()
        if handler.has_sent_ahead:  # an earlier answer is being written, and an error would break into it
            if handler.transport is not None:
                handler.transport.abort()
            return
        self._close(
            handler, "hello" if handler.is_websocket else "body", too_many_bytes(), asyncio.get_running_loop().time()
        )

    def _close(self, handler: "LimitedHandler", what: Wait, error: ApiError, now_s: float) -> None:
        transport = handler.transport
        if transport is None:
            return
        if what == "next" or transport.is_closing() or transport.get_write_buffer_size():
            transport.abort()
            return
        EDGE_REFUSED.labels(str(error.status)).inc()
        if what == "hello":
            code = POLICY_VIOLATION if error.status == 408 else TRY_AGAIN_LATER
            transport.write(close_frame(code, error.message.encode()))
        else:
            transport.write(raw_error(error))
        transport.close()
        self._closing[handler] = transport, now_s + LAST_WORDS_S


class LimitedHandler(web.RequestHandler):
    """The asyncio protocol of one connection. ``Connections`` counts all connections, and limits their number."""

    __slots__ = ("_ahead", "_answered_us", "_bytes_us", "_connections", "_peer", "_read_us", "_websocket",
                 "is_websocket")  # fmt: skip

    def __init__(self, manager: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        # By default the web framework buffers 32 pipelined requests with their bodies. Here it stops reading after one.
        self._max_msg_queue_size, self._msg_queue_resume_size = 1, 0
        self._connections = connections
        self._peer = ""
        self._bytes_us = self._read_us = 0
        self._answered_us = 0
        self._ahead = 0
        self._websocket: web.WebSocketResponse | None = None
        self.is_websocket = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else "unknown"
        self._connections.open(self, self._peer, self._loop.time())

    def data_received(self, data: bytes) -> None:
        self.bytes_arrived(data, now_us())

    def bytes_arrived(self, data: bytes, since_us: int) -> None:
        """Process received bytes. They reached this host at ``since_us``, in microseconds since the epoch."""
        if data:
            self._bytes_us, self._read_us = since_us, now_us()
        if self.is_websocket:
            self.body_arrived(len(data))
            if self.transport is None or self.transport.is_closing():
                return
        super().data_received(data)
        if self._current_request is not None and not self.is_websocket:
            self._count_sent_ahead()
        if self._messages and (error := getattr(self._messages[-1][0], "exc", None)) is not None:
            error.with_traceback(None)  # because its frames keep all received bytes in memory

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.lost(self)
        # Reference cycles keep this object until the next garbage collection. If no request is being handled, the web
        # framework is about to take the first message, so the messages stay.
        if self._current_request is not None:
            self._messages.clear()
        self.let_go_of_messages()
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the response to a request that reaches no handler or whose handler failed."""
        super().handle_error(request, status, exc, message)  # logs the error; its response is plain text
        error = ApiError(500, "The server failed to handle the request.", code="internal")
        if status == 400:
            said = "Invalid URL" if isinstance(exc, InvalidURLError) else message or "Malformed"
            what = said.partition("\n")[0].partition(":")[0].rstrip(".")  # without the client's bytes
            error = ApiError(400, f"The request is not valid HTTP ({what}).", code="bad_request")
        response = error_response(error, COMMON_HEADERS | {"Cache-Control": "no-store"})
        response.force_close()
        return response

    @property
    def arrival(self) -> ArrivalTimes:
        read_us = min(now_us(), max(self._read_us, self._answered_us))  # the wall clock may have been set back
        return ArrivalTimes(min(read_us, max(self._bytes_us, self._answered_us)), read_us)

    @property
    def is_refused(self) -> bool:
        """Whether the connection exceeds a limit. If so, the server closes the connection after the first response."""
        return self._connections.refusal(self) is not None

    def begin(self, request: web.Request) -> None:
        """Record that the server handles a request.

        Raises:
            ApiError: 429 or 503, if the connection exceeds a limit and the request is not a health check.
        """
        self._take_up_sent_ahead()
        self._count_sent_ahead()
        refusal = self._connections.refusal(self)
        self._connections.busy(self)
        proxies = self._connections.proxies
        if refusal is None and proxies.trusts(self._peer) and request.path not in PROBE_PATHS:
            client = proxies.client(self._peer, request.headers.getall(proxies.header, []))
            refusal = self._connections.move(self, client, self._loop.time())
        if refusal is not None and request.path not in PROBE_PATHS:
            raise too_many(refusal)

    def end(self, written_us: int | None = None) -> None:
        """Record when the request was answered: at ``written_us``, or now if ``written_us`` is None."""
        self._answered_us = now_us() if written_us is None else written_us
        if self._connections.proxies.trusts(self._peer):
            self._connections.move(self, PROXIED, self._loop.time())
        self._connections.answered(self, self._loop.time())

    def wait(self, what: Wait) -> None:
        self._connections.wait(self, what, self._loop.time())

    def upgrade(self, response: web.WebSocketResponse) -> None:
        self._websocket = response
        self._count_sent_ahead()
        self._ahead = 0  # these bytes still count, as parts of incomplete messages
        self.is_websocket = True
        self._connections.upgrade(self)

    def abort_if_client_left(self) -> None:
        """If a pipelined request waits and the client has left, abort the connection.

        While a pipelined request waits, nothing is read from the connection. So the event loop does not notice that the
        client has left.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or not self._buffer_paused:
            return
        if _is_closed_by_peer(transport.get_extra_info("socket")):
            transport.abort()

    def let_go_of_messages(self) -> None:
        # At once, because one event loop iteration may drop many connections.
        self._message_tail = b""
        parser, self._payload_parser = self._payload_parser, None
        if parser is not None:
            parser.feed_eof()
        if self._websocket is not None:
            # The web framework frees its parser only when the websocket is closed, which takes long.
            self._websocket._parser = None  # noqa: SLF001
            self._websocket = None

    @property
    def has_sent_ahead(self) -> bool:
        return self._ahead > 0

    def _count_sent_ahead(self) -> None:
        ahead = len(self._message_tail) + sum(body.total_bytes for _, body in self._messages)
        if ahead > self._ahead:
            arrived, self._ahead = ahead - self._ahead, ahead
            self.body_arrived(arrived)

    def _take_up_sent_ahead(self) -> None:
        if self._ahead:
            self._ahead = 0
            self._connections.bodies.forget(self)

    def body_arrived(self, count: int) -> None:
        self._connections.bodies.add(self, count)

    def body_failed(self) -> None:
        self._connections.bodies.forget(self)

    def body_taken(self, count: int) -> None:
        """Record that a body or message of ``count`` bytes has arrived completely."""
        self._connections.bodies.subtract(self, count)

    def body_turn(self, count: int) -> BodyTurn:
        return self._connections.bodies.turn(count)

    def busy(self) -> None:
        self._connections.busy(self)


class LimitedSite(web.TCPSite):
    """A listening socket. ``Connections`` counts the connections to this socket, and limits their number."""

    __slots__ = ("_handshake_s", "_is_timed", "_new_handler")

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, backlog: int, connections: Connections,
        tls: ssl.SSLContext | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(runner, host, port, backlog=backlog, ssl_context=tls)
        # A connection is counted only after its TLS handshake. This limits the time of the handshake.
        self._handshake_s = None if tls is None else connections.handshake_s
        server, loop = runner.server, asyncio.get_running_loop()
        if server is None:
            raise RuntimeError("set up the runner first")
        self._new_handler = partial(LimitedHandler, server, connections, loop=loop, **options)
        self._is_timed = False

    async def start(self) -> None:
        await web.BaseSite.start(self)
        server = self._server = await asyncio.get_running_loop().create_server(
            self._new_protocol, self._host, self._port, backlog=self._backlog, ssl=self._ssl_context,
            ssl_handshake_timeout=self._handshake_s,
        )  # fmt: skip
        # Encrypted bytes are read by the event loop's TLS code, which does not read the kernel's timestamps.
        self._is_timed = self._ssl_context is None and request_timestamps(server.sockets)

    def _new_protocol(self) -> asyncio.BaseProtocol:
        handler = self._new_handler()
        return TimedProtocol(handler) if self._is_timed else handler


def handler_of(request: web.Request) -> LimitedHandler:
    protocol = request.protocol
    if not isinstance(protocol, LimitedHandler):
        raise TypeError("the application must be served by a LimitedSite")
    return protocol


def _is_closed_by_peer(connection: Any) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), _HANG_UP)
    return bool(poll.poll(0))


def too_many(refusal: Refusal) -> ApiError:
    if refusal == "address":
        return ApiError(
            429, "Too many connections from this address: close some, or try again.", code="too_many_connections",
            retry_after_s=1,
        )  # fmt: skip
    return ApiError(
        503, "Too many connections: close idle ones, or try again.", code="too_many_connections", retry_after_s=1
    )


def _too_late(what: Wait, seconds: float) -> ApiError:
    missing = {
        "hello": "No valid first message (hello with a key, where keys are needed)",
        "body": "The body of the request did not arrive",
    }.get(what, "No request arrived")
    return ApiError(408, f"{missing} within {seconds:g} s: connect again.", code="request_timeout")
