"""``/healthz``, ``/readyz`` and ``/metrics`` of a service that has no HTTP port of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.runtime.errors import UserError
from services.runtime.metrics import exposition


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Where the health server listens.

    Attributes:
        host: Address; loopback unless an operator says otherwise.
        port: Port; 0 turns the server off.
    """

    host: str = field(default="127.0.0.1", metadata={"env": "RAILBUS_HEALTH_HOST", "help": "address of /healthz"})
    port: int = field(
        default=0, metadata={"env": "RAILBUS_HEALTH_PORT", "help": "port of /healthz, 0 = off", "ge": 0, "le": 65_535}
    )


@asynccontextmanager
async def serving(settings: HealthSettings, ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Serves while the block runs; ``/readyz`` answers 503 until ``ready()`` is true. Does nothing when the port is 0.

    Raises:
        UserError: The port is taken.
    """
    if settings.port == 0:
        yield
        return
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(text="not ready\n", status=503)

    async def metrics(_: web.Request) -> web.Response:
        body, content_type = exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise UserError(f"RAILBUS_HEALTH_PORT: {where} cannot be used ({error.strerror}); choose another") from None
        yield
    finally:
        await runner.cleanup()
