"""Test that three nodes of Apache Kafka keep acknowledged records if nodes are killed.

If one node is killed, producing continues. If two are killed, the third one acknowledges nothing.
"""

import asyncio
import dataclasses
import os
from collections.abc import Iterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.ids import uuid7
from schemas.stream import Verdict
from schemas.topics import STREAMS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from tests.support.brokers import BrokerUnavailable, KafkaCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE_S = 120.0
"""On a busy machine, three Java processes may take long to start, or to elect a leader."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    made = KafkaCluster(tmp_path_factory.mktemp("cluster") / "data")
    made.launch()
    try:
        made.wait_until_ready()
    except BrokerUnavailable as missing:
        if os.environ.get("RAILBUS_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(f"kafka: {missing}")
    try:
        yield made
    finally:
        if made.is_running():
            assert made.stop() == 0, made.said()


def request_id(number: int) -> str:
    return uuid7(1_700_000_000_000, number)


def event(number: int) -> Verdict:
    return Verdict(
        request_id=request_id(number), tenant="t", at=number, source="rails/test", decision="allow", policy_version="v"
    )


async def all_serve(cluster: KafkaCluster) -> None:
    def ready() -> bool:
        return all(cluster.serves(node) for node in range(1, cluster.nodes + 1))

    await until(lambda: asyncio.to_thread(ready), "every node serves", within_s=PATIENCE_S, every_s=0.2)


async def read_back(settings: BusSettings, wanted: set[str]) -> list[str]:
    """Read the stream log until all `wanted` ids were seen. Return the request ids of all records, in order."""
    seen: list[str] = []
    tail = TailReader(settings, handler=lambda records: seen.extend(
        record.event.request_id for record in records if isinstance(record, Received)
    ))  # fmt: skip
    reading = asyncio.create_task(tail.run())
    try:
        for number in range(settings.partitions):
            await tail.follow(STREAMS, number, "beginning")
        await until(lambda: wanted <= set(seen), "what was acknowledged is there", within_s=PATIENCE_S)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return seen


async def test_three_brokers_keep_three_copies_and_two_must_have_a_record(cluster: KafkaCluster) -> None:
    settings = BusSettings(bootstrap=cluster.bootstrap, partitions=3)
    await ensure_topics(settings)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        (topic,) = await admin.describe_topics([STREAMS.name])
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, STREAMS.name)])
    finally:
        await admin.close()
    assert [len(partition["replicas"]) for partition in topic["partitions"]] == [3, 3, 3]
    assert {name: value for name, value, *_ in answer.resources[0][4]}["min.insync.replicas"] == "2"


async def test_a_node_is_killed_and_producing_goes_on(cluster: KafkaCluster) -> None:
    settings = BusSettings(bootstrap=cluster.bootstrap, partitions=3)
    await ensure_topics(settings)
    producer = Producer(settings, role="rails")
    await producer.start()
    try:
        acks = [await producer.post(STREAMS, event(number)) for number in range(50)]
        await asyncio.to_thread(cluster.kill, 1)
        acks += [await producer.post(STREAMS, event(number)) for number in range(50, 200)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*acks)
    finally:
        await producer.stop()
    seen = await read_back(settings, {request_id(number) for number in range(200)})
    assert len(seen) == len(set(seen)), "an event is there twice"
    cluster.start_again()
    await all_serve(cluster)


async def test_two_nodes_are_killed_and_producing_waits(cluster: KafkaCluster) -> None:
    settings = BusSettings(bootstrap=cluster.bootstrap, partitions=3)
    await ensure_topics(settings)
    producer = Producer(settings, role="rails")
    await producer.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*[await producer.post(STREAMS, event(number)) for number in range(1_000, 1_050)])
        await asyncio.gather(*(asyncio.to_thread(cluster.kill, node) for node in (2, 3)))
        acks = [await producer.post(STREAMS, event(number)) for number in range(1_050, 1_100)]
        await asyncio.sleep(3)
        assert not any(ack.done() for ack in acks), "one node acknowledged alone"
        cluster.start_again()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*acks)
        await all_serve(cluster)
    finally:
        await producer.stop()
    await read_back(settings, {request_id(number) for number in range(1_000, 1_100)})


async def test_topics_of_one_copy_are_reported(cluster: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    topic = dataclasses.replace(STREAMS, name="of.one.copy")
    settings = BusSettings(bootstrap=cluster.bootstrap, partitions=3)
    await ensure_topics(dataclasses.replace(settings, replication=1), [topic])
    assert not caplog.records
    await ensure_topics(settings, [topic])
    (warning,) = caplog.records
    assert warning.getMessage().startswith("of.one.copy: replication factor 1 and min.insync.replicas=1, where")
