"""How aiokafka's clients are made, watched and put away: every use of what aiokafka does not publish stands here.

aiokafka is pinned below 0.15 because of this file.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from services.bus.contact import contact_with
from services.bus.settings import BusSettings

REQUEST_TIMEOUT_MS: Final = 15_000
"""A broker that is connected and silent for so long is taken for lost; its connection is made anew."""

RETRY_BACKOFF_MS: Final = 100
FETCH_WAIT_MS: Final = 500
"""How long an empty fetch may wait on the broker, which answers at the first record."""

BATCH_BYTES: Final = 1_048_576
"""Most bytes of a partition in one fetch, and room of a produce batch: one event of the largest size fits."""

CLOSE_S: Final = 5.0
"""Longest time that putting a client away may take."""


def make_producer(settings: BusSettings, name: str) -> Any:
    """An idempotent producer without linger of its own: ``Producer`` decides what waits."""
    producer = AIOKafkaProducer(
        **common_options(settings, name),
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        max_batch_size=BATCH_BYTES,
    )
    _watch(producer.client, settings)
    return producer


def make_consumer(settings: BusSettings, name: str, **options: Any) -> Any:
    """A consumer that commits nothing by itself and starts anew at the earliest record when its position is gone."""
    consumer = AIOKafkaConsumer(
        **common_options(settings, name),
        **{
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": FETCH_WAIT_MS,
            "max_partition_fetch_bytes": BATCH_BYTES,
        }
        | options,
    )
    _watch(consumer._client, settings)  # noqa: SLF001
    return consumer


def group_options(settings: BusSettings, group: str, start: str, instance_id: str | None) -> dict[str, Any]:
    """Options of a member of a consumer group.

    Range assignment gives a member the same partitions of all topics of one partition count, so that what is said about
    one request is read by one process. Liveness is the heartbeat's business alone (the loop may rest while its handler
    has no room), so the poll interval is a day. A join is answered when all members have rejoined or timed out, so
    requests may take that much longer.
    """
    session_ms = settings.session_timeout_ms
    return {
        "group_id": group,
        "group_instance_id": instance_id,
        "auto_offset_reset": start,
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": max(session_ms // 3, 300),
        "request_timeout_ms": session_ms + REQUEST_TIMEOUT_MS,
        "max_poll_interval_ms": 86_400_000,
        "partition_assignment_strategy": (RangePartitionAssignor,),
    }


def interrupt_fetch(consumer: Any) -> None:
    """Drops the connections fetches wait on, so that the next fetch is read at once.

    A broker answers the requests of one connection in order: after a change of assignment the new fetch would stand
    behind the old one's long poll, up to ``FETCH_WAIT_MS``. A new connection costs a millisecond or two instead.
    """
    for (_, group), connection in tuple(consumer._client._conns.items()):  # noqa: SLF001
        if group == ConnectionGroup.DEFAULT:
            connection.close()


async def put_away_producer(producer: Any) -> None:
    """Closes a producer whose unsent batches are no longer its business; never raises, takes ``CLOSE_S`` at most."""
    accumulator = producer._message_accumulator  # noqa: SLF001 - its stop() would wait for the broker to come back
    for batches in accumulator._batches.values():  # noqa: SLF001
        for batch in batches:
            batch._drain_waiter.cancel()  # noqa: SLF001 - else its exception is reported as never retrieved
    accumulator.fail_all(KafkaError("producer is being closed"))
    for conn in producer.client._conns.values():  # noqa: SLF001
        conn.close()
    await _bounded(producer.stop())


async def put_away_consumer(consumer: Any) -> None:
    """Leaves the group and closes; never raises, takes ``CLOSE_S`` at most."""
    await _bounded(consumer.stop())


async def _bounded(stopping: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await stopping


def common_options(settings: BusSettings, name: str) -> dict[str, Any]:
    """What every client takes: where the broker is and who we are."""
    _quiet()
    return {
        "bootstrap_servers": [f"{host}:{port}" for host, port in settings.addresses()],
        "client_id": name,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        "security_protocol": settings.security_protocol,
        "ssl_context": settings.ssl_context(),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }


def _quiet() -> None:
    """Without this aiokafka says ten times a second that a broker is away; ``Contact`` says it once."""
    log = logging.getLogger("aiokafka")
    if log.level == logging.NOTSET and not log.isEnabledFor(logging.DEBUG):
        log.setLevel(logging.CRITICAL)


def _watch(client: Any, settings: BusSettings) -> None:
    """Every request asks for a connection first: its outcome is the earliest sign that the broker is away or back."""
    contact = contact_with(settings)
    get_conn = client._get_conn  # noqa: SLF001

    async def watched(node_id: Any, **options: Any) -> Any:
        conn = await get_conn(node_id, **options)
        if conn is None:
            contact.lost("connection failed")
        else:
            contact.found()
        return conn

    client._get_conn = watched  # noqa: SLF001


def named(partitions: Iterable[tuple[str, int]]) -> list[Any]:
    """As aiokafka names partitions."""
    return [TopicPartition(topic, partition) for topic, partition in partitions]
