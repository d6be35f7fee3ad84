import logging
import ssl
from functools import cache
from typing import Any

import aiokafka.conn
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import KafkaConnectionError

from services.bus.settings import BusSettings


def credentials(settings: BusSettings) -> dict[str, Any]:
    _limit_client_logging()
    return {
        "security_protocol": settings.security_protocol,
        "ssl_context": _context(settings),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }


class _Connection(AIOKafkaConnection):  # type: ignore[misc]
    def send(self, request: Any, expect_response: bool = True) -> Any:
        try:
            return super().send(request, expect_response)
        # With uvloop, a write to a lost connection raises ``RuntimeError``; asyncio's own loop drops the bytes. The
        # error would end aiokafka's metadata refresh, without a message, and its task of the consumer group. So raise
        # the error that aiokafka expects.
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"connection to {self._host}:{self._port} is closed: {error}") from error


aiokafka.conn.AIOKafkaConnection = _Connection  # create_conn uses this class, here and in every aiokafka client


async def connect(settings: BusSettings, host: str, port: int, *, name: str, timeout_ms: int) -> Any:
    return await create_conn(host, port, client_id=name, request_timeout_ms=timeout_ms, **credentials(settings))


@cache  # reading the certificate authorities takes milliseconds
def _context(settings: BusSettings) -> ssl.SSLContext | None:
    return settings.ssl_context()


def _limit_client_logging() -> None:
    # aiokafka logs an unreachable broker ten times a second, but ``BrokerHealth`` logs it once. So aiokafka's lines are
    # shown only when the root logger is at DEBUG. Below INFO, aiokafka logs the bytes that it sends and receives, which
    # include prompts and answers. These lines are never shown.
    debugging = logging.getLogger().isEnabledFor(logging.DEBUG)
    logging.getLogger("aiokafka").setLevel(logging.INFO if debugging else logging.CRITICAL)
