"""One edge process: everything wired, started and stopped in order."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from aiohttp import web

from services.bus import Producer, ensure_topics
from services.edge.app import make_app
from services.edge.chat_api import ChatApi
from services.edge.hub import TICK_S, Hub
from services.edge.keys import load_keys
from services.edge.limits import Rate
from services.edge.memory import Memory
from services.edge.origins import Origins
from services.edge.page import Pages
from services.edge.partitions import Partitions
from services.edge.receipts import Receipts
from services.edge.reception import Reception
from services.edge.scans import Scans
from services.edge.settings import Settings
from services.edge.sockets import Sockets
from services.runtime.clock import now_us
from services.runtime.errors import UserError

FLUSH_S: Final = 3.0
"""Longest time for the last receipts."""


class Edge:
    """The process's parts."""

    def __init__(self, settings: Settings) -> None:
        instance = secrets.token_hex(3)
        keys = load_keys(settings.api_keys_file)
        rate = Rate(settings.rate_per_minute, settings.rate_burst) if settings.rate_per_minute else None
        self._settings = settings
        self._hub = Hub()
        self._partitions = Partitions(settings.bus, self._hub, instance=instance, static_id=settings.edge_instance)
        self._scans = Scans(settings.bus)
        self._producer = Producer(settings.bus, role="edge")
        self._receipts = Receipts(self._producer, f"edge/{instance}")
        self._memory = Memory(settings.redis_url, rate)
        reception = Reception(
            settings, instance=instance, hub=self._hub, partitions=self._partitions, scans=self._scans,
            producer=self._producer, receipts=self._receipts, memory=self._memory,
        )  # fmt: skip
        self._sockets = Sockets(reception, keys, settings)
        self._app = make_app(
            ChatApi(reception, keys, settings.client_buffer_bytes),
            self._sockets,
            Pages(self._hub, keys, self._partitions.reachable, settings.edge_notice),
            Origins(keyed=not keys.open, allowed=settings.origins),
        )

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until cancelled; ``on_ready`` is told the URL once the log is followed.

        Raises:
            UserError: The port is taken, or the broker refuses us.
        """
        runner = web.AppRunner(self._app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            url = await self._listen(runner)
            await ensure_topics(self._settings.bus)
            await self._producer.start()
            try:
                await self._serve(url, on_ready)
            finally:
                await self._producer.stop()
        finally:
            await runner.cleanup()
            await self._memory.close()

    async def _serve(self, url: str, on_ready: Callable[[str], None]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for work in (
                    self._partitions.run(), self._scans.run(), self._receipts.run(), self._tick(),
                    self._announce(url, on_ready),
                )
            ]  # fmt: skip
            try:
                await asyncio.Event().wait()
            finally:
                await self._stop()
                for task in tasks:
                    task.cancel()

    async def _stop(self) -> None:
        """While the log is still followed: let streams end, and write their receipts."""
        self._partitions.retire()
        await self._hub.stop(self._settings.edge_drain_ms)
        await self._sockets.stop()
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._receipts.flush()
        except TimeoutError:
            pass  # the producer says what it could not send

    async def _listen(self, runner: web.AppRunner) -> str:
        host, port = self._settings.edge_host, self._settings.edge_port
        try:
            await web.TCPSite(runner, host, port, backlog=1_024).start()
        except OSError as error:
            raise UserError(
                f"RAILBUS_EDGE_PORT: {host}:{port} cannot be used ({error.strerror}); choose another"
            ) from None
        address = runner.addresses[0]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{address[1]}"

    async def _announce(self, url: str, on_ready: Callable[[str], None]) -> None:
        await self._partitions.settled.wait()
        on_ready(url)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._hub.tick(now_us())
