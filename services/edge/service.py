"""Create the parts of one edge process, and start and stop them in order."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from services.bus import Producer, ensure_topics
from services.edge.batches.job_service import JobService
from services.edge.delivery.hub import TICK_S, Hub
from services.edge.delivery.receipts import ReceiptWriter
from services.edge.http.access.api_keys import load_keys
from services.edge.http.access.origins import OriginGuard
from services.edge.http.access.tls import tls_context
from services.edge.http.app import ServerLogger, make_app
from services.edge.http.batch_endpoint import BatchEndpoint
from services.edge.http.chat_endpoint import ChatEndpoint
from services.edge.http.connections import Connections, ConnectionTimeouts, LimitedSite
from services.edge.http.ledger_endpoint import LedgerEndpoint
from services.edge.http.page import PageEndpoint
from services.edge.http.status import StatusEndpoint
from services.edge.http.websockets import WebSocketEndpoint
from services.edge.ledger.window_reader import WindowReader
from services.edge.log.lookup import LogLookup
from services.edge.log.partition_follower import PartitionFollower
from services.edge.open_files import connection_limits
from services.edge.requests.request_service import RequestService
from services.edge.requests.shared_limits import SharedLimits
from services.edge.settings import Settings
from services.runtime.clock import steady_us
from services.runtime.errors import UserError
from services.runtime.logging import logger

FLUSH_S: Final = 3.0
"""Maximum time for writing the last receipts when the process stops, in seconds."""


class EdgeService:
    def __init__(self, settings: Settings) -> None:
        instance = secrets.token_hex(3)
        keys = load_keys(settings.api_keys_file)
        self._settings = settings
        self._hub = Hub()
        self._partitions = PartitionFollower(
            settings.bus, handler=self._hub.handle, wants=self._hub.wants, instance=instance,
            static_id=settings.edge_instance, on_unfollow=self._hub.index.drop_partition,
        )  # fmt: skip
        self._lookup = LogLookup(settings.bus, self._hub.index)
        self._ledger = WindowReader(settings.bus)
        self._producer = Producer(settings.bus, role="edge")
        self._receipts = ReceiptWriter(self._producer, f"edge/{instance}")
        self._shared_limits = SharedLimits(settings.redis_url, settings.rates)
        self._jobs = JobService(
            settings.batch_dir, settings.bus, self._producer, f"edge/{instance}",
            file_bytes=settings.batch_file_mb * 1_048_576, tenant_files=settings.batch_tenant_files,
            tenant_jobs=settings.batch_tenant_jobs,
        )  # fmt: skip
        self._requests = request_service = RequestService(
            settings, instance=instance, hub=self._hub, partitions=self._partitions, lookup=self._lookup,
            producer=self._producer, receipts=self._receipts, shared_limits=self._shared_limits,
        )  # fmt: skip
        self._watch_classes = request_service.watch_classes
        self._sockets = WebSocketEndpoint(request_service, keys, settings)
        self._http_options: dict[str, Any] = {
            "access_log": None, "auto_decompress": False, "logger": ServerLogger(logger("edge"), None),
        }  # fmt: skip
        self._app = make_app(
            ChatEndpoint(request_service, keys, settings.client_buffer_bytes),
            self._sockets,
            StatusEndpoint(self._hub, keys, self._partitions.reachable, settings.metrics_readers),
            PageEndpoint(settings.edge_notice, operator_view=settings.operator_page),
            LedgerEndpoint(self._ledger, keys, settings.metrics_readers),
            BatchEndpoint(self._jobs, keys),
            OriginGuard(keyed=not keys.allows_anonymous, allowed=settings.origins),
        )

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until cancelled. Call ``on_ready`` with the URL as soon as the edge can accept requests.

        Raises:
            UserError: The port is in use, or the broker refuses the connection.
        """
        runner = web.AppRunner(
            self._app, handler_cancellation=True, shutdown_timeout=1.0, **self._http_options,
        )  # fmt: skip
        await runner.setup()
        watching: asyncio.Task[None] | None = None
        try:
            limits = connection_limits(self._settings.max_connections)
            connections = Connections(
                limits.connections,
                self._settings.max_address_connections,
                self._settings.body_memory_mb * 1_048_576,
                ConnectionTimeouts.of(self._settings),
                self._settings.proxies,
            )
            url = await self._listen(runner, connections, limits.backlog)
            watching = asyncio.create_task(_close_late(connections))
            await ensure_topics(self._settings.bus)
            await self._producer.start()
            try:
                await self._serve(url, on_ready)
            finally:
                await self._producer.stop()
        finally:
            if watching is not None:
                watching.cancel()
            await runner.cleanup()
            await self._shared_limits.close()

    async def _serve(self, url: str, on_ready: Callable[[str], None]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for work in (
                    self._partitions.run(), self._lookup.run(), self._receipts.run(), self._ledger.run(),
                    self._jobs.run(), self._tick(), self._watch_classes(), self._producer.watch(),
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
        self._partitions.retire()  # the partitions are still read, so that open streams can end
        await self._hub.stop(self._settings.edge_drain_ms)
        await self._sockets.stop()
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._receipts.flush()
        except TimeoutError:
            pass  # the producer logs the receipts that it could not send

    async def _listen(self, runner: web.AppRunner, connections: Connections, backlog: int) -> str:
        host, port = self._settings.edge_host, self._settings.edge_port
        tls = tls_context(self._settings.edge_tls_cert, self._settings.edge_tls_key)
        try:
            site = LimitedSite(
                runner, host, port, backlog=backlog, connections=connections, tls=tls, **self._http_options
            )
            await site.start()
        except OSError as error:
            raise UserError(
                f"RAILBUS_EDGE_PORT: {host}:{port} cannot be used ({error.strerror}); choose another"
            ) from None
        except UnicodeError:
            raise UserError(f"RAILBUS_EDGE_HOST={host!r}: must be a host name or an address") from None
        address = runner.addresses[0]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if tls is None else 'https'}://{shown}:{address[1]}"

    async def _announce(self, url: str, on_ready: Callable[[str], None]) -> None:
        await self._partitions.homes_ready.wait()
        on_ready(url)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._hub.tick(steady_us())


async def _close_late(connections: Connections) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(TICK_S)
        connections.tick(loop.time())
