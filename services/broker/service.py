"""The embedded broker as an object that runs in an event loop."""

import asyncio
import dataclasses
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from services.broker.apis.dispatch import handle_frame
from services.broker.protocol.connection import KafkaConnection
from services.broker.settings import BadSetting, BrokerSettings
from services.broker.state import BrokerState

logger = logging.getLogger("railbus.broker")

LIMITATIONS = (
    "embedded broker, for development and tests only: no replication, no transactions, "
    "no authentication or TLS; files are synced to the disk only at a clean stop"
)
_BACKLOG = 128
_FAREWELL_S = 2.0  # longest wait, at the stop, for clients to read their last responses


class BrokerService:
    """One broker. The keyword arguments are the fields of `BrokerSettings`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, data_dir: Path | None = None, **more: Any) -> None:
        # localhost may also stand for ::1. With port 0, the two addresses would get different ports, so use only one.
        # An IPv6 address may be in brackets, as in HOST:PORT.
        host = "127.0.0.1" if host == "localhost" else host.strip("[]")
        self.settings = BrokerSettings(host=host, port=port, data_dir=data_dir, **more)
        self._broker: BrokerState | None = None
        self._server: asyncio.Server | None = None
        self.connections: set[KafkaConnection] = set()  # open connections
        self._sweeper: asyncio.TimerHandle | None = None
        self._full = False
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @classmethod
    def of(cls, settings: BrokerSettings) -> "BrokerService":
        return cls(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)})

    @property
    def port(self) -> int:
        """Return the port that the broker listens on; 0 before `start`."""
        return self._broker.port if self._broker is not None else 0

    @property
    def address(self) -> str:
        """Return HOST:PORT, which clients use as their bootstrap server."""
        host = self.settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def start(self) -> None:
        """Load the stored state and start to listen.

        Raises:
            BadSetting: A setting has a value that cannot be used.
        """
        self.settings.check()
        broker = BrokerState(self.settings)
        try:
            broker.start()
            self._server = await self._listen(broker)
        except BaseException:
            broker.stop()
            raise
        self._broker = broker
        broker.port = self._server.sockets[0].getsockname()[1]
        self._sweep()
        logger.info("%s", LIMITATIONS)

    async def stop(self) -> None:
        if self._server is None or self._broker is None:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._server.close()
        for connection in list(self.connections):
            connection.close()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
        await self._server.wait_closed()
        self._broker.stop()
        self._server = None

    async def _listen(self, broker: BrokerState) -> asyncio.Server:
        handle = partial(handle_frame, broker)

        def connection() -> KafkaConnection:
            return KafkaConnection(
                handle, self._opened, self._closed, max_request_bytes=self.settings.max_request_bytes
            )

        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(connection, self.settings.host, self.settings.port, backlog=_BACKLOG)
        except OSError as error:
            raise BadSetting(
                f"cannot listen on {self.settings.host}:{self.settings.port}: {error.strerror or error}; "
                "stop what uses the port, or choose another with --port"
            ) from None

    def _opened(self, connection: KafkaConnection) -> bool:
        if len(self.connections) >= self.settings.max_connections:
            if not self._full:
                logger.warning(
                    "more than %d connections: further ones are closed; raise --max-connections",
                    self.settings.max_connections,
                )
            self._full = True
            return False
        self._full = False
        self.connections.add(connection)
        self._all_closed.clear()
        return True

    def _closed(self, connection: KafkaConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def _sweep(self) -> None:
        oldest_s = time.monotonic() - self.settings.idle_connection_ms / 1000
        for connection in [each for each in self.connections if each.last_received_s < oldest_s]:
            connection.close()
        self._sweeper = asyncio.get_running_loop().call_later(self.settings.idle_connection_ms / 4000, self._sweep)
