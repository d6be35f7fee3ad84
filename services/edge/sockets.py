"""``/v1/stream``: any number of requests on one websocket, every op a JSON message."""

import asyncio
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from schemas.books import DetachReason
from services.edge.ask import parse_ask, parse_json
from services.edge.deliver import LINGER_S
from services.edge.encodings import Client, Encoding
from services.edge.errors import ApiError
from services.edge.framing import text_frame
from services.edge.keys import Keys, bearer
from services.edge.outlet import Outlet
from services.edge.positions import parse_request_id
from services.edge.reception import Reception
from services.edge.settings import Settings
from services.edge.subscription import Subscription
from services.runtime.clock import now_us

HEARTBEAT_S: Final = 20.0
"""A ping this often; a client that does not answer within half of it is gone."""

OP_FRAMES: Final = Encoding(kind="op_frames")

MAX_MESSAGE: Final = 1_048_576
"""Bytes of a client's message."""

CLOSE_CODES: Final[dict[DetachReason, tuple[int, bytes]]] = {
    "slow": (1013, b"reads too slowly: resume at the last id"),
    "shutdown": (1001, b"server stops: resume at the last id"),
}
"""Why the server ends a connection; the client comes back and resumes."""


class Sockets:
    """Serves websockets."""

    def __init__(self, reception: Reception, keys: Keys, settings: Settings) -> None:
        self._reception = reception
        self._keys = keys
        self._settings = settings
        self._open: set[Socket] = set()

    def routes(self) -> list[web.RouteDef]:
        """Where they are reached."""
        return [web.get("/v1/stream", self.serve, allow_head=False)]

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one client until it goes."""
        key = bearer(request.headers.get("Authorization"))
        tenant = self._keys.tenant(key) if self._keys.open or key is not None else None
        response = web.WebSocketResponse(heartbeat=HEARTBEAT_S, compress=False, max_msg_size=MAX_MESSAGE)
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        outlet = Outlet(transport, self._settings.client_buffer_bytes)
        socket = Socket(response, outlet, self._reception, self._keys, tenant, self._settings.max_socket_streams)
        self._open.add(socket)
        try:
            await socket.serve()
        finally:
            self._open.discard(socket)
        return response

    async def stop(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(socket.close("shutdown") for socket in tuple(self._open)))


class Socket:
    """One client."""

    def __init__(
        self, response: web.WebSocketResponse, outlet: Outlet, reception: Reception, keys: Keys, tenant: str | None,
        limit: int,
    ) -> None:  # fmt: skip
        self._response = response
        self._outlet = outlet
        self._reception = reception
        self._keys = keys
        self._tenant = tenant
        self._limit = limit
        self._tasks: dict[asyncio.Task[None], Subscription | None] = {}

    async def serve(self) -> None:
        """Answer messages until the client goes."""
        try:
            async for message in self._response:
                if message.type is WSMsgType.TEXT:
                    self._take(message.data)
                elif message.type is WSMsgType.BINARY:
                    self._say({"type": "error", "error": ApiError(400, "Send text.", code="invalid_json").body})
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self, reason: DetachReason) -> None:
        """End the connection for a reason that does not lie with a request."""
        code, text = CLOSE_CODES[reason]
        try:
            async with asyncio.timeout(LINGER_S):
                await self._response.close(code=code, message=text)
        except TimeoutError:
            self._outlet.abort()

    def _take(self, data: str) -> None:
        received_us = now_us()
        body: dict[str, Any] = {}
        try:
            body = parse_json(data)
            self._dispatch(body, received_us)
        except ApiError as error:
            self._refuse(error, body)

    def _dispatch(self, body: dict[str, Any], received_us: int) -> None:
        kind = body.get("type")
        if kind == "hello":
            self._tenant = self._keys.tenant(_text(body, "key"))
            self._say({"type": "welcome"})
            return
        if self._tenant is None:
            self._keys.tenant(None)
        if kind == "cancel":
            self._cancel(parse_request_id(_text(body, "request_id") or ""))
        elif kind in {"ask", "resume"}:
            if len(self._tasks) >= self._limit:
                raise ApiError(
                    429, f"At most {self._limit} requests at once on one connection.", code="too_many_streams"
                )
            task = asyncio.create_task(self._stream(body, received_us))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        else:
            raise ApiError(400, "type must be one of hello, ask, resume, cancel.", code="invalid_value", param="type")

    async def _stream(self, body: dict[str, Any], received_us: int) -> None:
        """One request's life on this connection."""
        try:
            stream = await self._open(body, received_us)
        except ApiError as error:
            self._refuse(error, body)
            return
        task = asyncio.current_task()
        if task is not None:
            self._tasks[task] = stream
        try:
            self._say(
                {
                    "type": "accepted", "request_id": stream.request.request_id, "at": stream.request.at,
                    "partition": stream.session.partition,
                },
                body,
            )  # fmt: skip
            await stream.serve(self._outlet)
        finally:
            stream.end("gone")  # unless it has ended: the connection is closed
        if stream.reason in CLOSE_CODES:
            await self.close(stream.reason)

    async def _open(self, body: dict[str, Any], received_us: int) -> Subscription:
        client = Client(tenant=self._tenant or "", encoding=OP_FRAMES)
        if body["type"] == "resume":
            request_id = parse_request_id(_text(body, "request_id") or "")
            return await self._reception.resume(request_id, _text(body, "after"), client)
        wanted = {name: value for name, value in body.items() if name not in {"type", "ref", "prompt"}}
        prompt = _text(body, "prompt")
        if prompt is not None:
            wanted.setdefault("messages", [{"role": "user", "content": prompt}])
        return await self._reception.ask(parse_ask(wanted), client, received_us=received_us)

    def _cancel(self, request_id: str) -> None:
        """The client wants no more of it; the router ends the request when nobody comes back for it."""
        for stream in self._tasks.values():
            if stream is not None and stream.request.request_id == request_id:
                stream.end("gone")
                self._say({"type": "detached", "request_id": request_id})
                return
        raise ApiError(404, "No such request on this connection.", code="request_not_found", param="request_id")

    def _refuse(self, error: ApiError, body: dict[str, Any]) -> None:
        named = {"request_id": body["request_id"]} if isinstance(body.get("request_id"), str) else {}
        self._say({"type": "error", **named, "error": error.body}, body)

    def _say(self, message: dict[str, Any], answered: dict[str, Any] | None = None) -> None:
        ref = (answered or {}).get("ref")
        if isinstance(ref, str | int):
            message["ref"] = ref
        self._outlet.write(text_frame(orjson.dumps(message)))


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ApiError(400, f"{name} must be text.", code="invalid_value", param=name)
    return value
