"""Serve ``/healthz``, ``/readyz`` and ``/metrics`` in a service that has no other HTTP server."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from services.runtime.errors import UserError
from services.runtime.metrics import READY, render_metrics

if TYPE_CHECKING:  # aiohttp is imported only where a port is opened
    from aiohttp.web import AbstractRouteDef


SHUTDOWN_S: Final = 1.0
"""Maximum time that requests may take to finish when the process ends, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Settings of the HTTP server for health and metrics, in services other than the edge.

    Attributes:
        host: Address to listen on.
        port: Port to listen on. 0 turns the server off.
    """

    host: str = field(
        default="127.0.0.1",
        metadata={"env": "RAILBUS_HEALTH_HOST", "help": "address to listen on for /healthz, /readyz and /metrics"},
    )
    port: int = field(
        default=0,
        metadata={
            "env": "RAILBUS_HEALTH_PORT",
            "help": "port to listen on for /healthz, /readyz and /metrics, 0 = off",
            "ge": 0,
            "le": 65_535,
        },
    )


@asynccontextmanager
async def serve_health(
    settings: HealthSettings, ready: Callable[[], bool], routes: "Iterable[AbstractRouteDef]" = ()
) -> AsyncIterator[None]:
    """Serve ``/healthz``, ``/readyz``, ``/metrics`` and ``routes`` during an ``async with`` block.

    If ``ready()`` is false, ``/readyz`` answers 503. If the port is 0, nothing is served.

    Raises:
        UserError: The port cannot be used.
    """
    if settings.port == 0:
        yield
        return
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        """Answer 200 as long as the process runs."""
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        """Answer 200 if the service has joined its consumer group and caught up with the log, otherwise 503."""
        return web.Response(text="ready\n") if ready() else web.Response(text="not ready\n", status=503)

    async def metrics(_: web.Request) -> web.Response:
        """Serve the metrics in Prometheus' text format."""
        READY.set(ready())
        body, content_type = render_metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics), *routes])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise UserError(f"RAILBUS_HEALTH_PORT: {where} cannot be used ({error.strerror}); choose another") from None
        except UnicodeError:
            raise UserError(f"RAILBUS_HEALTH_HOST={settings.host!r}: must be a host name or an address") from None
        yield
    finally:
        await runner.cleanup()
