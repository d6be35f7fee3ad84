"""The endpoints ``/v1/chat/completions`` and ``/v1/requests/{id}/events``."""

from typing import Final

from aiohttp import web

from services.edge.delivery.subscription import Subscription
from services.edge.encoders.chat_chunks import OnRestart
from services.edge.encoders.encoding import ClientContext, Encoding
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys
from services.edge.http.connections import handler_of
from services.edge.http.request_body import json_body
from services.edge.http.responses import send_stream
from services.edge.log.positions import parse_request_id
from services.edge.requests.choose_class import CLASS_HEADER
from services.edge.requests.parse import parse_json
from services.edge.requests.request_service import RequestService
from services.runtime.settings import is_utf8

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
MAX_IDEMPOTENCY_KEY_CHARS: Final = 255


class ChatEndpoint:
    def __init__(self, request_service: RequestService, keys: ApiKeys, buffer_bytes: int) -> None:
        self._request_service = request_service
        self._keys = keys
        self._buffer_bytes = buffer_bytes

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.create),
            web.get("/v1/chat/completions/{id}", self.read, allow_head=False),
            web.get("/v1/requests/{id}/events", self.events, allow_head=False),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Accept a chat request and deliver its answer, as chat chunks or as one completion."""
        opened, ignored = await self._ask(request)  # a separate function, so that its return frees the prompt
        headers = {"X-Railbus-Ignored": _header_text(ignored)} if ignored else {}
        return await send_stream(request, opened, buffer_bytes=self._buffer_bytes, headers=headers)

    async def _ask(self, request: web.Request) -> tuple[Subscription, tuple[str, ...]]:
        connection = handler_of(request)
        tenant = self._keys.tenant_of(request.headers)
        idempotency_key = _idempotency_key(request)
        body = await json_body(request)
        arrival = connection.arrival  # of the last bytes: the time that a client takes to send its body does not count
        async with connection.body_turn(len(body)) as turn:
            parsed = self._request_service.parse(parse_json(body), tenant, request.headers.get(CLASS_HEADER))
            encoding = _chat_encoding(
                stream=parsed.stream, include_usage=parsed.include_usage, on_restart=parsed.on_restart
            )
            if parsed.lane == "batch":
                turn.set_aside()
            opened = await self._request_service.accept(
                parsed,
                ClientContext(tenant=tenant, encoding=encoding),
                arrival=arrival,
                idempotency_key=idempotency_key,
                traceparent=request.headers.get("traceparent"),
                on_posted=turn.end_work,
            )
        return opened, parsed.ignored

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Deliver the answer to an earlier request, as a stream of chat chunks or as one completion."""
        encoding = _chat_encoding(
            stream=_flag(request, "stream", default=True),
            include_usage=_flag(request, "include_usage", default=False),
            on_restart="marker" if request.query.get("restart") == "marker" else "error",
        )
        return await self._resume(request, encoding)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Deliver the ops of an earlier request as server-sent events, up to the op ``close``.

        An op is an instruction to the client, such as to append text. The client may name the last op that it already
        has, in the header ``Last-Event-ID`` or the query parameter ``after``. Then only later ops are sent.
        """
        return await self._resume(request, Encoding(kind="op_events"))

    async def _resume(self, request: web.Request, encoding: Encoding) -> web.StreamResponse:
        client = ClientContext(tenant=self._keys.tenant_of(request.headers), encoding=encoding)
        request_id = parse_request_id(request.match_info["id"])
        after = request.headers.get("Last-Event-ID") or request.query.get("after") or None
        opened = await self._request_service.resume(request_id, after, client)
        return await send_stream(request, opened, buffer_bytes=self._buffer_bytes, headers={})


def _chat_encoding(*, stream: bool, include_usage: bool, on_restart: OnRestart) -> Encoding:
    if not stream:
        return Encoding(kind="completion")
    return Encoding(kind="chunks", include_usage=include_usage, on_restart=on_restart)


def _idempotency_key(request: web.Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not (0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and is_utf8(key)):
        raise ApiError(
            400, f"{IDEMPOTENCY_HEADER} must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters in UTF-8.",
            code="invalid_value", param=IDEMPOTENCY_HEADER,
        )  # fmt: skip
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
    return ", ".join(
        "".join(c for c in name[:64] if c.isascii() and (c.isalnum() or c in "_-.")) for name in names[:32]
    )
