"""How aiokafka's clients are made, watched and put away: what aiokafka does not publish is used here and in ``member``.

aiokafka is pinned below 0.15 because of these files.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from services.bus.connect import credentials
from services.bus.contact import backoff_s, contact_with, wait_for_broker
from services.bus.settings import BusSettings

REQUEST_TIMEOUT_MS: Final = 15_000
"""A broker that is connected and silent for so long is taken for lost; its connection is made anew."""

RETRY_BACKOFF_MS: Final = 100

PRODUCE_BYTES: Final = 1_048_576
"""Most bytes of a produced batch: one event of the largest size fits."""

CLOSE_S: Final = 3.0
"""Longest time that putting a client away may take."""


async def open_producer(settings: BusSettings, name: str) -> Any:
    """A started idempotent producer without linger of its own: ``Producer`` decides what waits.

    Waits for the broker as long as it is away.

    Raises:
        UserError: The broker refuses the credentials.
    """
    attempt = 0
    while True:
        await wait_for_broker(settings)
        producer = AIOKafkaProducer(
            **common_options(settings, name),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=PRODUCE_BYTES,
        )
        _watch(producer.client)
        try:
            await producer.start()
        except KafkaError:
            await put_away_producer(producer)
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1
        except BaseException:
            await put_away_producer(producer)
            raise
        else:
            return producer


def make_client(settings: BusSettings, name: str, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Any:
    """A client that knows the cluster and sends single requests."""
    client = AIOKafkaClient(**common_options(settings, name), request_timeout_ms=timeout_ms)
    _watch(client)
    return client


def common_options(settings: BusSettings, name: str) -> dict[str, Any]:
    """What every client takes: where the broker is and who we are."""
    return {
        "bootstrap_servers": [f"{host}:{port}" for host, port in settings.addresses()],
        "client_id": name,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        **credentials(settings),
    }


async def put_away_producer(producer: Any) -> None:
    """Closes a producer whose unsent batches are no longer its business; never raises, bounded by ``CLOSE_S`` twice.

    Its own ``stop`` would wait until the broker is back and has taken every batch.
    """
    producer._closed = True  # noqa: SLF001
    for conn in producer.client._conns.values():  # noqa: SLF001 - ends what waits for an answer
        conn.close()
    if producer._sender.sender_task is not None:  # noqa: SLF001
        await bounded(producer._sender.close())  # noqa: SLF001
    await bounded(producer.client.close())


async def bounded(closing: Awaitable[Any]) -> None:
    """Awaits the end of something for ``CLOSE_S`` at most, whatever it raises: it is over for us."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await closing


def _watch(client: Any) -> None:
    """Every request asks for a connection first: its outcome is the earliest sign that a broker is away or back."""
    get_conn = client._get_conn  # noqa: SLF001

    async def watched(node_id: Any, **options: Any) -> Any:
        conn = await get_conn(node_id, **options)
        broker = client.cluster.broker_metadata(node_id)
        if broker is not None:
            contact = contact_with(broker.host, broker.port)
            if conn is None:
                contact.lost("connection failed")
            else:
                contact.found()
        return conn

    client._get_conn = watched  # noqa: SLF001
