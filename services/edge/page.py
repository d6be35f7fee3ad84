"""The page, and what machines ask: health, readiness, metrics, models."""

import html
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final

import orjson
from aiohttp import web

from services.edge.hub import Hub
from services.edge.keys import Keys, bearer
from services.runtime.metrics import exposition

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads nothing from elsewhere, and runs no script but its own file."""

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
}

NOTICE: Final = b"<!-- notice -->"
"""Where the operator's sentence stands in the page."""


class Pages:
    """The handlers."""

    def __init__(self, hub: Hub, keys: Keys, reachable: Callable[[], Awaitable[bool]], notice: str) -> None:
        self._hub = hub
        self._keys = keys
        self._reachable = reachable
        folder = resources.files("services.edge") / "static"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
        page, kind = self._files["/"]
        self._files["/"] = page.replace(NOTICE, _paragraph(notice).encode()), kind

    def routes(self) -> list[web.RouteDef]:
        """Where they are reached."""
        return [
            *(web.get(path, self.file) for path in self._files),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
        ]

    async def file(self, request: web.Request) -> web.Response:
        """The page and its parts."""
        body, kind = self._files[request.path]
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def healthz(self, _: web.Request) -> web.Response:
        """The process lives."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """The log is reached and followed."""
        if await self._reachable():
            return web.Response(text="ready\n")
        return web.Response(text="not ready: the log is not reached or not followed yet\n", status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' text; with API keys, for who has one."""
        self._tenant(request)
        body, content_type = exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def models(self, request: web.Request) -> web.Response:
        """What may be asked for: ``default``, and the models that answered lately."""
        self._tenant(request)
        names = dict.fromkeys(("default", *reversed(self._hub.models)))
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "railbus"} for name in names]
        return web.Response(body=orjson.dumps({"object": "list", "data": data}), content_type="application/json")

    def _tenant(self, request: web.Request) -> str:
        return self._keys.tenant(bearer(request.headers.get("Authorization")))


def _paragraph(notice: str) -> str:
    return f'<p id="notice">{html.escape(notice)}</p>' if notice else ""
