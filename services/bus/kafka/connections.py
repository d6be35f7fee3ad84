"""Open a single connection to a broker, and build the security arguments of all aiokafka clients."""

import logging
import ssl
from functools import cache
from typing import Any

import aiokafka.conn
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import KafkaConnectionError

from services.bus.settings import BusSettings


def credentials(settings: BusSettings) -> dict[str, Any]:
    """Return the security arguments that every aiokafka client takes."""
    _limit_client_logging()
    return {
        "security_protocol": settings.security_protocol,
        "ssl_context": _context(settings),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }


class _Connection(AIOKafkaConnection):  # type: ignore[misc]
    """A connection whose ``send`` raises ``KafkaConnectionError`` if the connection was lost a moment ago.

    aiokafka expects this error. With uvloop, a write to a lost connection raises ``RuntimeError``; asyncio's own loop
    drops the written bytes instead. The ``RuntimeError`` would end two tasks of aiokafka: the metadata refresh, without
    any message, and the task of the consumer group, with an error that ends the process.
    """

    def send(self, request: Any, expect_response: bool = True) -> Any:
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"connection to {self._host}:{self._port} is closed: {error}") from error


aiokafka.conn.AIOKafkaConnection = _Connection  # create_conn uses this class, here and in every aiokafka client


async def connect(settings: BusSettings, host: str, port: int, *, name: str, timeout_ms: int) -> Any:
    """Open an aiokafka connection. TLS, SASL and the exchange of API versions are complete when it is returned."""
    return await create_conn(host, port, client_id=name, request_timeout_ms=timeout_ms, **credentials(settings))


@cache
def _context(settings: BusSettings) -> ssl.SSLContext | None:
    """Return the TLS context. It is cached, because reading the certificate authorities takes milliseconds."""
    return settings.ssl_context()


def _limit_client_logging() -> None:
    """Show aiokafka's log lines only when the root logger is at DEBUG.

    aiokafka logs an unreachable broker ten times a second, but ``BrokerHealth`` logs it once. Below INFO, aiokafka logs
    the bytes that it sends and receives, which include prompts and answers. These lines are never shown.
    """
    debugging = logging.getLogger().isEnabledFor(logging.DEBUG)
    logging.getLogger("aiokafka").setLevel(logging.INFO if debugging else logging.CRITICAL)
