import asyncio
import dataclasses
import random

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.topics import STREAMS, TOPICS
from services.bus import BusSettings, ensure_topics, partition_counts
from services.runtime.clock import now_ms
from services.runtime.errors import UserError
from tests.integration.bus.lab import foreign_producer
from tests.support.brokers import Broker


async def test_creates_every_topic_once_whoever_asks(own_embedded_broker: Broker) -> None:
    settings = BusSettings(bootstrap=own_embedded_broker.address, partitions=3)
    await asyncio.gather(*(ensure_topics(settings) for _ in range(3)))
    await ensure_topics(settings)
    counts = await partition_counts(settings)
    assert {topic.name: counts[topic.name] for topic in TOPICS} == {topic.name: topic.partitions(3) for topic in TOPICS}


async def test_the_records_of_an_older_installation_get_the_brokers_time(
    own_embedded_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = BusSettings(bootstrap=own_embedded_broker.address)
    topics = [dataclasses.replace(STREAMS, name=f"older.{random.getrandbits(64):x}") for _ in range(2)]
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        given = {"retention.ms": "123456", "max.message.bytes": "7777"}
        await admin.create_topics([NewTopic(topic.name, 4, 1, topic_configs=given) for topic in topics])
        await asyncio.gather(*(ensure_topics(settings, topics) for _ in range(4)))
        for topic in topics:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
            (answer,) = await admin.describe_configs([resource])
            entries = {name: value for name, value, *_ in answer.resources[0][4]}
            assert {name: entries[name] for name in (*given, "message.timestamp.type")} == {
                **given,
                "message.timestamp.type": "LogAppendTime",
            }
    finally:
        await admin.close()
    assert not caplog.records
    async with foreign_producer(settings.bootstrap) as client:
        sent = await client.send_and_wait(topics[0].name, b"v", timestamp_ms=now_ms() + 3_600_000)
    assert sent.timestamp <= now_ms()


async def test_refuses_another_number_of_partitions(settings: BusSettings) -> None:
    topic = dataclasses.replace(STREAMS, name=f"counted.{random.getrandbits(64):x}")
    await ensure_topics(settings, [topic])
    with pytest.raises(UserError, match=r"has 4 partition\(s\), RAILBUS_PARTITIONS=5 needs 5"):
        await ensure_topics(dataclasses.replace(settings, partitions=5), [topic])


async def test_what_the_broker_will_not_create_is_a_users_mistake(settings: BusSettings) -> None:
    topic = dataclasses.replace(STREAMS, name=f"copied.{random.getrandbits(64):x}")
    with pytest.raises(UserError, match=f"does not create topic {topic.name}"):
        await ensure_topics(dataclasses.replace(settings, replication=3), [topic])
