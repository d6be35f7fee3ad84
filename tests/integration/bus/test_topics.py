import asyncio
import dataclasses
import random

import pytest

from schemas.topics import STREAMS, TOPICS
from services.bus import BusSettings, ensure_topics, partition_counts
from services.runtime.errors import UserError
from tests.contract.brokers import Broker


async def test_creates_every_topic_once_whoever_asks(own_embedded_broker: Broker) -> None:
    settings = BusSettings(bootstrap=own_embedded_broker.address, partitions=3)
    await asyncio.gather(*(ensure_topics(settings) for _ in range(3)))
    await ensure_topics(settings)
    counts = await partition_counts(settings)
    assert {topic.name: counts[topic.name] for topic in TOPICS} == {topic.name: topic.partitions(3) for topic in TOPICS}


async def test_refuses_another_number_of_partitions(settings: BusSettings) -> None:
    topic = dataclasses.replace(STREAMS, name=f"counted.{random.getrandbits(64):x}")
    await ensure_topics(settings, [topic])
    with pytest.raises(UserError, match=r"has 4 partition\(s\), RAILBUS_PARTITIONS=5 needs 5"):
        await ensure_topics(dataclasses.replace(settings, partitions=5), [topic])


async def test_what_the_broker_will_not_create_is_a_users_mistake(settings: BusSettings) -> None:
    topic = dataclasses.replace(STREAMS, name=f"copied.{random.getrandbits(64):x}")
    with pytest.raises(UserError, match=f"does not create topic {topic.name}"):
        await ensure_topics(dataclasses.replace(settings, replication=3), [topic])
