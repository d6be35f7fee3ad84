"""The endpoints for health, readiness, metrics and the list of models."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from services.edge.delivery.hub import Hub
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys
from services.runtime.metrics import READY, render_metrics

HEALTH_PATHS: Final = ("/healthz", "/health")
READY_PATH: Final = "/readyz"
PROBE_PATHS: Final = frozenset({*HEALTH_PATHS, READY_PATH})
"""Paths that answer without a key and for any ``Host``, because monitors call them by IP address."""

DEFAULT_MODEL: Final = "default"


class StatusEndpoint:
    """The handlers of health, readiness, metrics and models.

    Args:
        reachable: Returns whether the edge can accept requests.
        metrics_readers: Tenants that may read the metrics; empty if every tenant may.
    """

    def __init__(
        self, hub: Hub, keys: ApiKeys, reachable: Callable[[], Awaitable[bool]],
        metrics_readers: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self._metrics_readers = metrics_readers
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
        """Answer 200 while the process runs."""
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 if the broker answers and the edge reads the log; otherwise 503."""
        if await self._reachable():
            return web.Response(text="ready\n")
        return web.Response(text="not ready: the log is unreachable or not followed yet\n", status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the metrics in Prometheus' text format. If the edge has API keys, a key is needed.

        The metrics are sums over all tenants and contain no tenant's name. ``RAILBUS_METRICS_TENANTS`` restricts who
        may read them.
        """
        tenant = self._keys.tenant_of(request.headers)
        if self._metrics_readers and tenant not in self._metrics_readers:
            raise ApiError(403, "This key may not read the metrics.", code="metrics_not_allowed")
        READY.set(await self._reachable())
        body, content_type = render_metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def models(self, request: web.Request) -> web.Response:
        """List the model name ``default``, and the models that recently answered the tenant's requests on this edge."""
        names = self._names(self._keys.tenant_of(request.headers))
        return _json({"object": "list", "data": [_model(name) for name in names]})

    async def model(self, request: web.Request) -> web.Response:
        """Describe a model. If ``/v1/models`` does not list its name, respond with 404."""
        names = self._names(self._keys.tenant_of(request.headers))
        name = request.match_info["id"]
        if name not in names:
            raise ApiError(
                404, f"The model {name[:200]!r} has not answered here recently: GET /v1/models lists those that have.",
                code="model_not_found", param="model",
            )  # fmt: skip
        return _json(_model(name))

    def _names(self, tenant: str) -> dict[str, None]:
        return dict.fromkeys((DEFAULT_MODEL, *self._hub.models(tenant)))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "railbus"}


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
