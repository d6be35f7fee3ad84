"""Smoke tests of the embedded broker with two client libraries: aiokafka, which Railbus uses, and librdkafka."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.unit.broker import raw

SOON_S = 20
T = TypeVar("T")


async def blocking(action: Callable[[], T]) -> T:
    """Run a blocking call of librdkafka in a thread, because the broker runs in this event loop. Return its result."""
    async with asyncio.timeout(SOON_S):
        return await asyncio.to_thread(action)


async def test_aiokafka_produces_consumes_in_a_group_and_seeks(broker):
    await raw.create(broker, "t", 2)
    async with AIOKafkaProducer(bootstrap_servers=broker.address, enable_idempotence=True, acks="all") as producer:
        sent = [
            await producer.send_and_wait("t", b"%d" % number, partition=number % 2, timestamp_ms=1000 + number)
            for number in range(20)
        ]
    assert [record.offset for record in sent] == [number // 2 for number in range(20)]

    reader = AIOKafkaConsumer("t", bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest")
    async with asyncio.timeout(SOON_S), reader:
        values = [(await reader.getone()).value for _ in range(20)]
        assert sorted(values, key=int) == [b"%d" % number for number in range(20)]
        await reader.commit()
        odd = TopicPartition("t", 1)
        assert await reader.committed(odd) == 10
        assert (await reader.end_offsets([odd]), await reader.beginning_offsets([odd])) == ({odd: 10}, {odd: 0})
        assert (await reader.offsets_for_times({odd: 1008}))[odd] == (4, 1009)


async def test_aiokafka_is_told_that_there_are_no_transactions(broker):
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id="tx")
    with pytest.raises(TransactionalIdAuthorizationFailed):
        async with asyncio.timeout(SOON_S):
            await producer.start()
    await producer.stop()


async def test_librdkafka_produces_consumes_in_a_group_and_seeks(broker):
    settings = {"bootstrap.servers": broker.address}

    def produce() -> None:
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("c", 2, 1, config={"retention.ms": "3600000"})])["c"].result()
        producer = Producer({**settings, "enable.idempotence": True, "compression.type": "lz4"})
        failures: list[object] = []
        for number in range(2000):
            producer.produce(
                "c", b"%d" % number, b"key", number % 2, on_delivery=lambda error, _: error and failures.append(error)
            )
        assert producer.flush(SOON_S) == 0
        assert not failures

    def consume() -> list[bytes]:
        reader = Consumer({**settings, "group.id": "cg", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        reader.subscribe(["c"])
        found: list[bytes] = []
        while len(found) < 2000:
            found += [message.value() for message in reader.consume(500, 1.0)]
        reader.commit(asynchronous=False)
        places = [Place("c", 0), Place("c", 1)]
        assert [place.offset for place in reader.committed(places)] == [1000, 1000]
        assert reader.get_watermark_offsets(places[0]) == (0, 1000)
        assert [place.offset for place in reader.offsets_for_times([Place("c", 0, 0)], SOON_S)] == [0]
        reader.close()
        return found

    def administer() -> None:
        admin = AdminClient(settings)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "c")
        assert admin.describe_configs([resource])[resource].result()["retention.ms"].value == "3600000"
        groups = admin.list_consumer_groups().result().valid
        assert [group.group_id for group in groups] == ["cg"]
        admin.delete_consumer_groups(["cg"])["cg"].result()
        admin.delete_topics(["c"])["c"].result()
        assert "c" not in admin.list_topics(timeout=SOON_S).topics

    await blocking(produce)
    assert sorted(await blocking(consume), key=int) == [b"%d" % number for number in range(2000)]
    await blocking(administer)


async def test_librdkafka_is_told_that_there_are_no_transactions(broker):
    def begin() -> None:
        # The test ignores what librdkafka prints in addition to the exception.
        Producer({"bootstrap.servers": broker.address, "transactional.id": "tx", "log_level": 0}).init_transactions(
            SOON_S
        )

    with pytest.raises(KafkaException, match="does not support transactions"):
        await blocking(begin)
