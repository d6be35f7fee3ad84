"""``/v1/chat/completions`` and ``/v1/requests/{id}/events``: asking and reading over HTTP."""

from typing import Final

from aiohttp import web

from services.edge.ask import parse_ask, parse_json
from services.edge.body import OnRestart
from services.edge.deliver import deliver
from services.edge.encodings import Client, Encoding
from services.edge.errors import ApiError
from services.edge.keys import Keys, bearer
from services.edge.positions import parse_request_id
from services.edge.reception import Reception
from services.runtime.clock import now_us

ONCE_HEADER: Final = "Idempotency-Key"
MAX_ONCE: Final = 255


class ChatApi:
    """The handlers."""

    def __init__(self, reception: Reception, keys: Keys, buffer_bytes: int) -> None:
        self._reception = reception
        self._keys = keys
        self._buffer_bytes = buffer_bytes

    def routes(self) -> list[web.RouteDef]:
        """Where they are reached."""
        return [
            web.post("/v1/chat/completions", self.create),
            web.get("/v1/chat/completions/{id}", self.read, allow_head=False),
            web.get("/v1/requests/{id}/events", self.events, allow_head=False),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Take a request and deliver its answer."""
        received_us = now_us()
        tenant = self._tenant(request)
        if request.content_type != "application/json":
            raise ApiError(415, "The body must be JSON: send Content-Type: application/json.", code="not_json")
        ask = parse_ask(parse_json(await request.read()))
        encoding = _chat(stream=ask.stream, include_usage=ask.include_usage, on_restart=ask.on_restart)
        opened = await self._reception.ask(
            ask,
            Client(tenant=tenant, encoding=encoding),
            received_us=received_us,
            once=_once(request),
            traceparent=request.headers.get("traceparent"),
        )
        headers = {"X-Railbus-Ignored": _header_text(ask.ignored)} if ask.ignored else {}
        return await deliver(request, opened, buffer_bytes=self._buffer_bytes, headers=headers)

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Deliver the answer of a request made earlier, as chat chunks from a position on, or whole."""
        encoding = _chat(
            stream=_flag(request, "stream", default=True),
            include_usage=_flag(request, "include_usage", default=False),
            on_restart="marker" if request.query.get("restart") == "marker" else "error",
        )
        return await self._resume(request, encoding)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Deliver the ops of a request made earlier, from a position on, to its close."""
        return await self._resume(request, Encoding(kind="op_events"))

    async def _resume(self, request: web.Request, encoding: Encoding) -> web.StreamResponse:
        client = Client(tenant=self._tenant(request), encoding=encoding)
        request_id = parse_request_id(request.match_info["id"])
        after = request.headers.get("Last-Event-ID") or request.query.get("after") or None
        opened = await self._reception.resume(request_id, after, client)
        return await deliver(request, opened, buffer_bytes=self._buffer_bytes, headers={})

    def _tenant(self, request: web.Request) -> str:
        return self._keys.tenant(bearer(request.headers.get("Authorization")))


def _chat(*, stream: bool, include_usage: bool, on_restart: OnRestart) -> Encoding:
    """OpenAI's format, in pieces or in one."""
    if not stream:
        return Encoding(kind="completion")
    return Encoding(kind="chunks", include_usage=include_usage, on_restart=on_restart)


def _once(request: web.Request) -> str | None:
    key = request.headers.get(ONCE_HEADER)
    if key is not None and not 0 < len(key) <= MAX_ONCE:
        raise ApiError(
            400, f"{ONCE_HEADER} must have 1 to {MAX_ONCE} characters.", code="invalid_value", param=ONCE_HEADER
        )
    return key


def _flag(request: web.Request, name: str, *, default: bool) -> bool:
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() in {"1", "true"}:
        return True
    if text.lower() in {"0", "false"}:
        return False
    raise ApiError(400, f"{name} must be true or false.", code="invalid_value", param=name)


def _header_text(names: tuple[str, ...]) -> str:
    """The names in a header: what else stands in them could break it."""
    return ", ".join(
        "".join(c for c in name[:64] if c.isascii() and (c.isalnum() or c in "_-.")) for name in names[:32]
    )
