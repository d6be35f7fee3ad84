"""Test that a request to a dead broker fails with a connection error, even if aiokafka has not noticed the death yet.

The test kills the broker while it has unread requests. The operating system then resets the broker's connections.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from schemas.topics import STREAMS
from services.bus import BusSettings, ensure_topics
from services.bus.kafka.cluster import Cluster
from tests.integration.bus.lab import LIMIT_S
from tests.support.brokers import Broker

TOLD_S = 3.0  # so late that even a test that is delayed for a moment writes before


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker("embedded", tmp_path / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def told_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay aiokafka's reaction to a lost connection by ``TOLD_S`` seconds.

    Without this delay, aiokafka reacts two iterations of the event loop after the loss.
    """
    told = AIOKafkaConnection._on_read_task_error

    def later(_: type, ref: Any, task: Any) -> None:
        asyncio.get_running_loop().call_later(TOLD_S, partial(told, ref, task))

    monkeypatch.setattr(AIOKafkaConnection, "_on_read_task_error", classmethod(later))


async def kill(broker: Broker) -> None:
    await asyncio.sleep(0.05)
    broker.kill()
    await asyncio.sleep(0.05)


@pytest.mark.usefixtures("told_late")
async def test_writing_to_a_lost_connection_is_a_connection_error(broker: Broker) -> None:
    settings = BusSettings(bootstrap=broker.address)
    await ensure_topics(settings)
    cluster = Cluster(settings, "test")
    await cluster.open()
    await cluster.wait_for_topics([STREAMS.name])
    node = cluster.leader((STREAMS.name, 0))
    assert node is not None
    conn = await cluster.connect(node)

    os.kill(broker.pid, signal.SIGSTOP)
    unread = conn.send(MetadataRequest([]))
    ends = asyncio.ensure_future(cluster.end_offsets([(STREAMS.name, 0)]))
    await kill(broker)

    assert conn.connected()
    with pytest.raises(KafkaConnectionError, match="closed"):
        await conn.send(MetadataRequest([]))
    with pytest.raises(KafkaConnectionError):
        await unread
    async with asyncio.timeout(LIMIT_S):
        await cluster.refresh()  # succeeds although its connection is lost, too
        broker.launch()
        await asyncio.to_thread(broker.wait_until_ready)
        assert await ends == {(STREAMS.name, 0): 0}
    await cluster.close()
