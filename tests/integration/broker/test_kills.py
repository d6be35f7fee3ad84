"""Test ``kill -9`` of the embedded broker at random moments while a client produces with acks=all.

Afterwards every acknowledged record is there exactly once, at the acknowledged offset. The broker is killed three times
while the client produces. ``RAILBUS_TEST_ROUNDS=50`` kills it fifty times instead.
"""

import asyncio
import contextlib
import logging
import os
import random

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import RecordMetadata

from tests.contract.lab import KafkaClients, open_clients, unique
from tests.support.brokers import Broker
from tests.support.waiting import until

ROUNDS = int(os.environ.get("RAILBUS_TEST_ROUNDS", "3"))
PARTITIONS = 3
VALUE_BYTES = 20_000  # so large that each round fills several segments of the smallest size
CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": str(1 << 20)}


@pytest.fixture
def broker(tmp_path):
    running = Broker("embedded", tmp_path / "data")
    running.start()
    yield running
    if running.is_running():
        assert running.stop() == 0, running.said()


class Sender:
    """A client that produces numbered values until it is told to stop. Each partition has several batches in flight."""

    def __init__(self, clients: KafkaClients, topic: str) -> None:
        self._clients = clients
        self._topic = topic
        self.sent: list[list[asyncio.Future[RecordMetadata]]] = [[] for _ in range(PARTITIONS)]

    @property
    def acknowledged(self) -> int:
        return sum(future.done() and future.exception() is None for futures in self.sent for future in futures)

    async def run(self, stop: asyncio.Event) -> None:
        # Whatever happens to the broker, the client tries again for as long as this test runs.
        producer = await self._clients.producer(request_timeout_ms=600_000, max_batch_size=3 * VALUE_BYTES)
        while not stop.is_set():
            for partition, futures in enumerate(self.sent):
                value = b"%d:%d:" % (partition, len(futures)) + bytes(VALUE_BYTES)
                futures.append(await producer.send(self._topic, value, partition=partition))
            await asyncio.sleep(0.001)
        await asyncio.gather(*(future for futures in self.sent for future in futures))


async def everything(clients: KafkaClients, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Return the offset and the beginning of the value of every record of a partition."""
    place = TopicPartition(topic, partition)
    reader: AIOKafkaConsumer = await clients.reader(topic, [partition])
    end = (await reader.end_offsets([place]))[place]
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(120):
        while len(found) < end:
            got = await reader.getmany(place, timeout_ms=1000)
            found += [(record.offset, record.value.rstrip(b"\0")) for record in got.get(place, ())]
    await reader.stop()
    return found


@pytest.mark.slow
async def test_what_was_acknowledged_is_there_once_whenever_the_broker_is_killed(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aiokafka")  # the client says many times a second that the broker is away
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    topic = unique("kills")
    async with open_clients(broker.address) as clients:
        await clients.create_topic(topic, PARTITIONS, CONFIG)
        sender, stop = Sender(clients, topic), asyncio.Event()
        sending = asyncio.create_task(sender.run(stop))
        try:
            for _ in range(ROUNDS):
                reached = sender.acknowledged + moments.randrange(1, 300)
                await until(
                    lambda reached=reached: sender.acknowledged >= reached or sending.done(), "records are sent"
                )
                await asyncio.sleep(moments.uniform(0, 0.05))
                await asyncio.to_thread(broker.kill)
                broker.launch()
                await asyncio.to_thread(broker.wait_until_ready)
            stop.set()
            async with asyncio.timeout(180):
                await sending
        finally:
            stop.set()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        await asyncio.to_thread(broker.kill)  # and what was acknowledged last is there, too
        broker.launch()
        await asyncio.to_thread(broker.wait_until_ready)
    async with open_clients(broker.address) as clients:
        for partition, futures in enumerate(sender.sent):
            found = await everything(clients, topic, partition)
            at = dict(found)
            wanted = [b"%d:%d:" % (partition, number) for number in range(len(futures))]
            acknowledged = [sent.result().offset for sent in futures]
            lost = [value for value, offset in zip(wanted, acknowledged, strict=True) if at.get(offset) != value]
            assert not lost, f"seed {seed}: acknowledged and gone: {lost[:10]}"
            values = [value for _, value in found]
            assert len(values) == len(set(values)), f"seed {seed}: a record is there twice"
            assert values == wanted, f"seed {seed}: not in the order in which they were sent"
