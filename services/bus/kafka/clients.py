"""Create, watch and close aiokafka's clients.

This module and ``membership`` use private attributes of aiokafka, so aiokafka is pinned below 0.15.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Collection
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from services.bus.kafka.broker_health import (
    PROBE_TIMEOUT_MS,
    backoff_s,
    forget_gone_nodes,
    health_of_node,
    wait_for_broker,
)
from services.bus.kafka.connections import connect, credentials
from services.bus.settings import BusSettings
from services.runtime.errors import UserError

REQUEST_TIMEOUT_MS: Final = 15_000
"""If a request has no response for this many milliseconds, its connection counts as lost and a new one is opened."""

RETRY_BACKOFF_MS: Final = 100

PRODUCE_BYTES: Final = 1_048_576
"""Maximum size of a produced batch in bytes. An event of the maximum size fits."""

CLOSE_S: Final = 3.0
"""Maximum time in seconds to close a client."""


async def open_producer(settings: BusSettings, name: str) -> Any:
    """Wait for the broker. Return a started idempotent producer that sends each batch without delay.

    Raises:
        UserError: The broker refuses the credentials, or does not let this user write.
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
        report_health(producer.client, settings)
        find_moved_brokers(producer.client, settings)
        try:
            await producer.start()
        except ClusterAuthorizationFailedError:
            await close_producer(producer)
            why = "the broker does not let this user write to any topic: `railbus acls` prints the rights it needs"
            raise UserError(why) from None
        except KafkaError:
            await close_producer(producer)
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1
        except BaseException:
            await close_producer(producer)
            raise
        else:
            return producer


def common_options(settings: BusSettings, name: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": settings.servers(),
        "client_id": name,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        **credentials(settings),
    }


async def close_producer(producer: Any) -> None:
    """Close a producer and drop its unsent batches. Never raise."""
    producer._closed = True  # noqa: SLF001
    for conn in producer.client._conns.values():  # noqa: SLF001 - ends requests that wait for a response
        conn.close()
    if producer._sender.sender_task is not None:  # noqa: SLF001
        await bounded_close(producer._sender.close())  # noqa: SLF001
    await bounded_close(producer.client.close())


async def bounded_close(closing: Awaitable[Any]) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await closing


def report_health(client: Any, settings: BusSettings) -> None:
    get_conn = client._get_conn  # noqa: SLF001

    async def watched(node_id: Any, **options: Any) -> Any:
        conn = await get_conn(node_id, **options)
        broker = client.cluster.broker_metadata(node_id)
        if broker is not None:
            health = health_of_node(settings, node_id, (broker.host, broker.port))
            if conn is None:
                health.mark_unreachable("connection failed")
            else:
                health.mark_reachable()
        return conn

    def on_metadata(cluster: Any) -> None:
        listed = {broker.nodeId: (broker.host, broker.port) for broker in cluster.brokers()}
        forget_gone_nodes(settings, listed, time.monotonic())

    client._get_conn = watched  # noqa: SLF001
    client.cluster.add_listener(on_metadata)


def find_moved_brokers(client: Any, settings: BusSettings) -> None:
    """Let a client ask the bootstrap addresses again if no broker that it knows answers.

    aiokafka asks only the brokers that it knows. If the addresses of all of them changed, it would never find them.
    """
    ask_known = client._metadata_update  # noqa: SLF001

    async def update(metadata: Any, topics: Collection[str] | None) -> bool:
        if await ask_known(metadata, topics):
            return True
        known = {(broker.host, broker.port) for broker in metadata.brokers()}
        for host, port in settings.addresses():
            if (host, port) in known:
                continue
            answer = await _ask_metadata(client, settings, host, port, topics)
            if answer is not None and answer.brokers:
                metadata.update_metadata(answer)
                return True
        return False

    client._metadata_update = update  # noqa: SLF001


async def _ask_metadata(
    client: Any, settings: BusSettings, host: str, port: int, topics: Collection[str] | None
) -> Any:
    name = client._client_id  # noqa: SLF001
    try:
        conn = await connect(settings, host, port, name=name, timeout_ms=PROBE_TIMEOUT_MS)
    except (OSError, KafkaError, TimeoutError):
        return None
    try:
        return await conn.send(MetadataRequest(list(topics) if topics else None))
    except (KafkaError, TimeoutError):
        return None
    finally:
        conn.close()
