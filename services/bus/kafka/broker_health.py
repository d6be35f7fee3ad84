import asyncio
import itertools
import random
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from services.bus.kafka.connections import connect
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.runtime.metrics import BROKER_AWAY

_log = logger("bus")

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0
PROBE_TIMEOUT_MS: Final = 5_000

GONE_S: Final = 3_600.0
"""Seconds after which a node that Kafka does not list any more has left the cluster for good."""

Address = tuple[str, int]
"""Host and port of a broker."""


class BrokerHealth:
    """Remembers whether this process can connect to one broker, and logs each change once."""

    def __init__(self, address: str) -> None:
        self._address = address
        # Only attempts to connect change this, because a connection may end although the broker is reachable.
        self._away = False

    def mark_unreachable(self, reason: BaseException | str) -> None:
        if self._away:
            return
        self._away = True
        BROKER_AWAY.inc()
        text = reason if isinstance(reason, str) else str(reason)[:200] or type(reason).__name__
        _log.warning("broker %s unreachable (%s); waiting", self._address, text)

    def mark_reachable(self) -> None:
        if not self._away:
            return
        self._away = False
        BROKER_AWAY.dec()
        _log.warning("broker %s is back", self._address)

    def forget(self) -> None:
        """Stop counting this broker as unreachable, because the process no longer tries to connect to it."""
        if self._away:
            self._away = False
            BROKER_AWAY.dec()


@cache
def health_of(host: str, port: int) -> BrokerHealth:
    return BrokerHealth(f"{host}:{port}")


@dataclass(slots=True)
class _Node:
    node_id: Any
    absent_since_s: float | None = None


_nodes: Final[dict[str, dict[Address, _Node]]] = {}
"""The nodes of a cluster that clients of this process have tried to reach, by ``BusSettings.bootstrap``."""


def health_of_node(settings: BusSettings, node_id: Any, address: Address) -> BrokerHealth:
    _nodes.setdefault(settings.bootstrap, {}).setdefault(address, _Node(node_id)).node_id = node_id
    return health_of(*address)


def forget_gone_nodes(settings: BusSettings, present: Mapping[Any, Address], now_s: float) -> None:
    """Stop counting nodes as unreachable that have another address now, or have not been listed for ``GONE_S`` seconds.

    Kafka does not list a node that has crashed, so a node counts for a while after it was listed last. A bootstrap
    address always counts. ``present`` are the addresses of the listed nodes, by node id.
    """
    nodes, kept = _nodes.get(settings.bootstrap, {}), {*present.values(), *settings.addresses()}
    for address, node in tuple(nodes.items()):
        if address in kept:
            node.absent_since_s = None
            continue
        if node.absent_since_s is None:
            node.absent_since_s = now_s
        if node.node_id in present or now_s - node.absent_since_s >= GONE_S:
            health_of(*address).forget()
            del nodes[address]


def backoff_s(attempt: int) -> float:
    """Return the seconds to wait after failed attempt number ``attempt``, counted from 0: exponential, with jitter."""
    wait: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempt, 16))
    return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnects, guards nothing


async def wait_for_broker(settings: BusSettings) -> None:
    """Wait until a bootstrap broker accepts a connection, however long this takes.

    If no broker accepts a connection at first, log each of them once as unreachable.

    Raises:
        UserError: The broker refuses the credentials, or its certificate is not trusted.
    """
    for attempt in itertools.count():
        failed: list[tuple[BrokerHealth, BaseException | str]] = []
        for host, port in settings.addresses():
            health = health_of(host, port)
            try:
                conn = await connect(settings, host, port, name="railbus-probe", timeout_ms=PROBE_TIMEOUT_MS)
            except SaslAuthenticationFailed as error:
                raise UserError(
                    f"broker {host}:{port} refuses RAILBUS_KAFKA_SASL_USERNAME or RAILBUS_KAFKA_SASL_PASSWORD: {error}"
                ) from None
            except UnsupportedSaslMechanismError:
                offered = f"broker {host}:{port} does not offer RAILBUS_KAFKA_SASL_MECHANISM={settings.sasl_mechanism}"
                raise UserError(f"{offered}: take another") from None
            except ssl.SSLCertVerificationError as error:
                reason = error.verify_message
                raise UserError(
                    f"broker {host}:{port}: its certificate is not trusted ({reason}); set RAILBUS_KAFKA_SSL_CAFILE"
                ) from None
            except (OSError, KafkaError, TimeoutError) as error:
                failed.append((health, _reason(error)))
            else:
                await conn.close()
                health.mark_reachable()
                for address in settings.addresses():  # one is enough; a client that needs another marks it itself
                    health_of(*address).forget()
                return
        for health, why in failed:
            health.mark_unreachable(why)
        await asyncio.sleep(backoff_s(attempt))


def _reason(error: BaseException) -> BaseException | str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionError | ssl.SSLError | KafkaConnectionError):
        return "it hangs up when spoken to: is RAILBUS_KAFKA_SECURITY_PROTOCOL right?"
    return error
