"""One connection to one broker."""

import logging
import ssl
from functools import cache
from typing import Any

from aiokafka.conn import create_conn

from services.bus.settings import BusSettings


def credentials(settings: BusSettings) -> dict[str, Any]:
    """How a connection is secured, as aiokafka's arguments; every client is made with them."""
    _quiet()
    return {
        "security_protocol": settings.security_protocol,
        "ssl_context": _context(settings),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }


async def connect(settings: BusSettings, host: str, port: int, *, name: str, timeout_ms: int) -> Any:
    """An aiokafka connection, past TLS, SASL and the exchange of versions.

    Raises:
        OSError, KafkaError, TimeoutError: As it failed.
    """
    return await create_conn(host, port, client_id=name, request_timeout_ms=timeout_ms, **credentials(settings))


@cache
def _context(settings: BusSettings) -> ssl.SSLContext | None:
    """Reading the authorities takes milliseconds, and settings are few."""
    return settings.ssl_context()


def _quiet() -> None:
    """Lets aiokafka be heard only when the root logger is at DEBUG.

    It says ten times a second that a broker is away, where ``Contact`` says it once; and below INFO it logs the bytes
    it sends and receives, prompts and answers among them: never.
    """
    heard = logging.getLogger().isEnabledFor(logging.DEBUG)
    logging.getLogger("aiokafka").setLevel(logging.INFO if heard else logging.CRITICAL)
