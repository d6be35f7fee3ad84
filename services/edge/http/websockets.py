"""The endpoint ``/v1/stream``: a websocket on which a client can have several requests at the same time."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from schemas.side_events import DetachReason
from services.edge.delivery.client_writer import CLOSE_TIMEOUT_S, ClientWriter
from services.edge.delivery.subscription import Subscription
from services.edge.encoders.encoding import ClientContext, Encoding
from services.edge.encoders.websocket import pong_frame, text_frame
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys, bearer_token
from services.edge.http.connections import LimitedHandler, handler_of
from services.edge.log.positions import parse_request_id
from services.edge.requests.parse import ArrivalTimes, parse_json
from services.edge.requests.request_service import RequestService
from services.edge.settings import Settings

HEARTBEAT_S: Final = 20.0
"""Seconds between pings. A client that does not answer within half of this counts as gone."""

WEBSOCKET_OPS: Final = Encoding(kind="op_frames")

MAX_MESSAGE_BYTES: Final = 1_048_576
"""Maximum size of a client's message, in bytes."""

MAX_FRAME_HEAD_BYTES: Final = 14
"""Maximum size of a frame's header, in bytes (RFC 6455, section 5.2)."""

MAX_REF_CHARS: Final = 256
"""Maximum length of a ``ref`` in characters. It is limited because every reply repeats it."""

MAX_ECHOED_ID_CHARS: Final = 64
"""Maximum characters of a ``request_id`` that an error repeats. A valid id is shorter."""

CLOSE_CODES: Final[dict[DetachReason, tuple[int, bytes]]] = {
    "slow": (1013, b"reads too slowly: resume at the last id"),
    "shutdown": (1001, b"server stops: resume at the last id"),
}
"""The code and text of the close frame, by the reason for which the server ends a connection."""

CLIENT_MESSAGES: Final[Mapping[str, str]] = {
    "hello": "Gives the API key as `key`, for clients that cannot send an `Authorization` header, such as browsers.",
    "ask": "Asks. It has the fields of a chat completion request; `prompt` may stand for one user message.",
    "resume": "Resumes a stream: `request_id`, and `after`, the `id` of the last op that was received.",
    "ping": "Asks for a sign of life; browsers cannot see the protocol's own pings. It does not count as a `hello`.",
    "cancel": "Ends the delivery of `request_id` here. The request is stopped if no client comes back for it.",
}
"""The messages of a client, by ``type``. Each may have a ``ref``, a number or short text, which the reply repeats."""

SERVER_MESSAGES: Final[Mapping[str, str]] = {
    "welcome": "The key of `hello` is known.",
    "accepted": "The request is on the log: its `request_id`, `at` (microseconds since the epoch) and `partition`.",
    "pong": "The answer to `ping`.",
    "detached": "The delivery of `request_id` has ended, as `cancel` asked.",
    "error": "`error` has `message`, `type`, `param` and `code`; `request_id` is there where one was given.",
}
"""The messages of the server other than ops, by ``type``."""


class WebSocketEndpoint:
    def __init__(self, request_service: RequestService, keys: ApiKeys, settings: Settings) -> None:
        self._request_service = request_service
        self._keys = keys
        self._settings = settings
        self._open: set[WebSocketConnection] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/stream", self.serve, allow_head=False)]

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Open a websocket for many requests.

        Each op (an instruction to the client, such as to append text) is sent as one message.
        """
        key = bearer_token(request.headers)
        tenant = self._keys.tenant(key) if self._keys.allows_anonymous or key is not None else None
        response = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, compress=False, max_msg_size=MAX_MESSAGE_BYTES, autoping=False
        )
        if not _is_handshake(request, response):
            raise ApiError(400, "This address needs a websocket handshake (version 13).", code="not_a_websocket")
        handler = handler_of(request)
        handler.upgrade(response)
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        writer = ClientWriter(transport, self._settings.client_buffer_bytes)
        connection = WebSocketConnection(
            response, writer, self._request_service, self._keys, tenant, self._settings.max_socket_streams, handler
        )
        if key is None:
            handler.wait("hello")
        self._open.add(connection)
        try:
            await connection.serve()
        finally:
            self._open.discard(connection)
            if transport.is_closing() and not response.closed:
                await response.close()  # otherwise the heartbeat timer keeps its incomplete message in memory
        return response

    async def stop(self) -> None:
        """Close every websocket with a message that asks the client to resume."""
        await asyncio.gather(*(connection.close("shutdown") for connection in tuple(self._open)))


class WebSocketConnection:
    def __init__(
        self, response: web.WebSocketResponse, writer: ClientWriter, request_service: RequestService, keys: ApiKeys,
        tenant: str | None, limit: int, handler: LimitedHandler,
    ) -> None:  # fmt: skip
        self._response = response
        self._writer = writer
        self._request_service = request_service
        self._keys = keys
        self._tenant = tenant
        self._limit = limit
        self._handler = handler
        self._tasks: dict[asyncio.Task[None], Subscription | str | None] = {}
        """The stream of each task, or the request's id while a stream is being resumed, or None for a new request."""
        self._too_slow = False  # whether too many bytes wait for the client; if so, nothing more is written or read

    async def serve(self) -> None:
        try:
            async for message in self._response:
                size = _bytes_of(message.data)
                self._handler.body_taken(size + MAX_FRAME_HEAD_BYTES)
                if message.type is WSMsgType.TEXT:
                    self._take(message.data, size)
                elif message.type is WSMsgType.BINARY:
                    self._say({"type": "error", "error": ApiError(400, "Send text.", code="invalid_json").body})
                elif message.type is WSMsgType.PING:
                    self._write(pong_frame(message.data))
                del message  # it may have 1 MiB, and would stay in memory until the next message comes
                if self._too_slow:
                    break
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._too_slow:
            await self.close("slow")

    async def close(self, reason: DetachReason) -> None:
        """Send a close frame. Abort the connection if the client does not answer within ``CLOSE_TIMEOUT_S``."""
        code, text = CLOSE_CODES[reason]
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._response.close(code=code, message=text)
        except TimeoutError:
            self._writer.abort()

    def _take(self, data: str, size: int) -> None:
        arrival = self._handler.arrival
        body: dict[str, Any] = {}
        try:
            body = parse_json(data)
            if body.get("type") == "ping":
                _check_ref(body)
                self._say({"type": "pong"}, body)
                return
            self._dispatch(body, size, arrival)
            self._handler.busy()
        except ApiError as error:
            self._send_error(error, body)

    def _dispatch(self, body: dict[str, Any], size: int, arrival: ArrivalTimes) -> None:
        _check_ref(body)
        kind = body.get("type")
        if kind == "hello":
            self._tenant = self._keys.tenant(_text(body, "key"))
            self._say({"type": "welcome"}, body)
            return
        if self._tenant is None:
            self._keys.tenant(None)
        if kind == "cancel":
            self._cancel(parse_request_id(_text(body, "request_id") or ""), body)
        elif kind in ("ask", "resume"):  # not a set: a client may send a list
            if len(self._tasks) >= self._limit:
                raise ApiError(
                    429, f"At most {self._limit} requests at once on one connection.", code="too_many_streams"
                )
            resumed_id = _resumed_id(body) if kind == "resume" else None
            # The tenant of now, because a ``hello`` with another key may follow before the task runs.
            task = asyncio.create_task(self._stream(body, size, arrival, self._tenant or ""))
            self._tasks[task] = resumed_id
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        else:
            raise ApiError(
                400, f"type must be one of {', '.join(CLIENT_MESSAGES)}.", code="invalid_value", param="type"
            )

    async def _stream(self, body: dict[str, Any], size: int, arrival: ArrivalTimes, tenant: str) -> None:
        about: dict[str, Any] = {name: body[name] for name in ("ref", "request_id") if name in body}
        try:
            stream = await self._open(body, size, arrival, tenant)
        except ApiError as error:
            self._send_error(error, about)
            if self._too_slow:
                await self.close("slow")
            return
        del body  # the prompt may be large, and must not stay in memory while the answer is delivered
        task = asyncio.current_task()
        if task is not None:
            self._tasks[task] = stream
        try:
            self._say(
                {
                    "type": "accepted", "request_id": stream.request.request_id, "at": stream.request.at,
                    "partition": stream.session.partition,
                },
                about,
            )  # fmt: skip
            await stream.serve(self._writer)
        finally:
            stream.end("gone")  # no effect if the stream has ended already
        if stream.reason in CLOSE_CODES:
            await self.close(stream.reason)

    async def _open(self, body: dict[str, Any], size: int, arrival: ArrivalTimes, tenant: str) -> Subscription:
        client = ClientContext(tenant=tenant, encoding=WEBSOCKET_OPS)
        if body["type"] == "resume":
            return await self._request_service.resume(_resumed_id(body), _text(body, "after"), client)
        chat_body = {name: value for name, value in body.items() if name not in {"type", "ref", "prompt"}}
        prompt = _text(body, "prompt")
        if prompt is not None:
            chat_body.setdefault("messages", [{"role": "user", "content": prompt}])
        async with self._handler.body_turn(size) as turn:
            parsed = self._request_service.parse(chat_body, client.tenant)
            if parsed.lane == "batch":
                turn.set_aside()
            return await self._request_service.accept(parsed, client, arrival=arrival, on_posted=turn.end_work)

    def _cancel(self, request_id: str, body: dict[str, Any]) -> None:
        for task, stream in self._tasks.items():
            if stream == request_id:  # the stream is not open yet
                task.cancel()
            elif isinstance(stream, Subscription) and stream.request.request_id == request_id:
                stream.end("gone")
            else:
                continue
            self._say({"type": "detached", "request_id": request_id}, body)
            return
        raise ApiError(404, "No such request on this connection.", code="request_not_found", param="request_id")

    def _send_error(self, error: ApiError, body: dict[str, Any]) -> None:
        request_id = body.get("request_id")
        named = isinstance(request_id, str) and len(request_id) <= MAX_ECHOED_ID_CHARS
        self._say({"type": "error", **({"request_id": request_id} if named else {}), "error": error.body}, body)

    def _say(self, message: dict[str, Any], answered: dict[str, Any] | None = None) -> None:
        ref = (answered or {}).get("ref")
        if isinstance(ref, int | float) or (isinstance(ref, str) and len(ref) <= MAX_REF_CHARS):
            message["ref"] = ref
        self._write(text_frame(orjson.dumps(message)))

    def _write(self, frame: bytes) -> None:
        if not self._too_slow:
            self._too_slow = self._writer.write(frame) == "slow"


def _is_handshake(request: web.Request, response: web.WebSocketResponse) -> bool:
    try:
        return bool(response.can_prepare(request))
    except ValueError:  # a header has bytes that are not ASCII
        return False


def _check_ref(body: dict[str, Any]) -> None:
    ref = body.get("ref")
    if isinstance(ref, str) and len(ref) > MAX_REF_CHARS:
        raise ApiError(
            400, f"ref may have at most {MAX_REF_CHARS} characters: every reply repeats it.", code="invalid_value",
            param="ref",
        )  # fmt: skip


def _bytes_of(payload: object) -> int:
    if isinstance(payload, str):
        return len(payload) if payload.isascii() else len(payload.encode())
    return len(payload) if isinstance(payload, bytes | bytearray) else 0


def _resumed_id(body: dict[str, Any]) -> str:
    return parse_request_id(_text(body, "request_id") or "")


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ApiError(400, f"{name} must be text.", code="invalid_value", param=name)
    return value
