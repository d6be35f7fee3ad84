"""One connection to one broker."""

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
    """Raises what aiokafka expects of a connection that was lost a moment ago.

    uvloop answers a write to it with ``RuntimeError``, where asyncio's own loop drops what is written. This ends
    aiokafka's tasks: the metadata refresh without a message, and the group's with an error that ends the process.
    """

    def send(self, request: Any, expect_response: bool = True) -> Any:
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"connection to {self._host}:{self._port} is closed: {error}") from error


aiokafka.conn.AIOKafkaConnection = _Connection  # what create_conn makes, here and in every client of aiokafka


async def connect(settings: BusSettings, host: str, port: int, *, name: str, timeout_ms: int) -> Any:
    """Return an aiokafka connection that has passed TLS, SASL and the exchange of versions."""
    return await create_conn(host, port, client_id=name, request_timeout_ms=timeout_ms, **credentials(settings))


@cache
def _context(settings: BusSettings) -> ssl.SSLContext | None:
    """Cache the TLS context: reading the authorities takes milliseconds."""
    return settings.ssl_context()


def _limit_client_logging() -> None:
    """Show aiokafka's log lines only when the root logger is at DEBUG.

    aiokafka reports an unreachable broker ten times a second, where ``BrokerHealth`` does so once. Below INFO it logs
    the bytes that it sends and receives, prompts and answers among them: those are never shown.
    """
    debugging = logging.getLogger().isEnabledFor(logging.DEBUG)
    logging.getLogger("aiokafka").setLevel(logging.INFO if debugging else logging.CRITICAL)
