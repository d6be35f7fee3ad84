"""One connection to one broker."""

import logging
import ssl
from functools import cache
from typing import Any

from aiokafka.conn import create_conn

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


async def connect(settings: BusSettings, host: str, port: int, *, name: str, timeout_ms: int) -> Any:
    """Return an aiokafka connection that has passed TLS, SASL and the exchange of versions."""
    return await create_conn(host, port, client_id=name, request_timeout_ms=timeout_ms, **credentials(settings))


@cache
def _context(settings: BusSettings) -> ssl.SSLContext | None:
    """Cache the TLS context: reading the authorities takes milliseconds."""
    return settings.ssl_context()


def _limit_client_logging() -> None:
    """Show aiokafka's log lines only when the root logger is at DEBUG.

    aiokafka reports ten times a second that a broker is away, where ``BrokerHealth`` does so once. Below INFO it logs
    the bytes that it sends and receives, prompts and answers among them: those are never shown.
    """
    debugging = logging.getLogger().isEnabledFor(logging.DEBUG)
    logging.getLogger("aiokafka").setLevel(logging.INFO if debugging else logging.CRITICAL)
