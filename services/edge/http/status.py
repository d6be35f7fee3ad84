"""Endpoints about the server itself: health, readiness, metrics, models."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from services.edge.delivery.hub import Hub
from services.edge.errors import ApiError
from services.edge.http.api_keys import ApiKeys
from services.runtime.metrics import READY, render_metrics

HEALTH_PATHS: Final = ("/healthz", "/health")
READY_PATH: Final = "/readyz"
PROBE_PATHS: Final = frozenset({*HEALTH_PATHS, READY_PATH})
"""Open to any host name and without a key: a monitor calls them by address, and they hold no secrets."""

DEFAULT_MODEL: Final = "default"


class StatusEndpoint:
    """The handlers; ``reachable`` returns whether the broker answers and home partitions are followed."""

    def __init__(self, hub: Hub, keys: ApiKeys, reachable: Callable[[], Awaitable[bool]]) -> None:
        self._hub = hub
        self._keys = keys
        self._reachable = reachable

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.get(path, self.health) for path in HEALTH_PATHS),
            web.get(READY_PATH, self.ready),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{id:.+}", self.model),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200: the process runs."""
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 when the log is reached and followed, otherwise 503."""
        if await self._reachable():
            return web.Response(text="ready\n")
        return web.Response(text="not ready: the log is unreachable or not followed yet\n", status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the metrics in Prometheus' text format; needs a key where keys are required."""
        self._keys.tenant_of(request.headers)
        READY.set(await self._reachable())
        body, content_type = render_metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def models(self, request: web.Request) -> web.Response:
        """List the models that may be asked for: ``default``, and those that answered recently."""
        self._keys.tenant_of(request.headers)
        return _json({"object": "list", "data": [_model(name) for name in self._names()]})

    async def model(self, request: web.Request) -> web.Response:
        """Describe one model, or answer 404."""
        self._keys.tenant_of(request.headers)
        name = request.match_info["id"]
        if name not in self._names():
            raise ApiError(
                404, f"The model {name[:200]!r} has not answered here recently: GET /v1/models lists those that have.",
                code="model_not_found", param="model",
            )  # fmt: skip
        return _json(_model(name))

    def _names(self) -> dict[str, None]:
        """Return ``default`` and the models that answered recently, newest first."""
        return dict.fromkeys((DEFAULT_MODEL, *reversed(self._hub.models)))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "railbus"}


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
