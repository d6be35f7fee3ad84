"""Test that the broker also works with librdkafka (confluent-kafka), on which many other Kafka clients are built."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import confluent_kafka as librdkafka
import pytest
from aiokafka.codec import has_lz4, has_snappy, has_zstd

from tests.contract.lab import PATIENCE_S, KafkaClients, read_records, unique

READABLE_BY_BOTH = {"gzip": True, "snappy": has_snappy(), "lz4": has_lz4(), "zstd": has_zstd()}


@pytest.fixture
def consumers() -> Iterator[list[librdkafka.Consumer]]:
    opened: list[librdkafka.Consumer] = []
    yield opened
    for consumer in opened:
        consumer.close()


def _producer(lab: KafkaClients, **settings: Any) -> librdkafka.Producer:
    defaults = {"bootstrap.servers": lab.address, "partitioner": "murmur2_random", "linger.ms": 5}
    return librdkafka.Producer({**defaults, **settings})


def _produce(producer: librdkafka.Producer, topic: str, records: list[dict[str, Any]]) -> list[librdkafka.Message]:
    """Produce the records, and return the messages in the order in which they were acknowledged."""
    reports: list[librdkafka.Message] = []

    def report(error: librdkafka.KafkaError | None, message: librdkafka.Message) -> None:
        assert error is None, error
        reports.append(message)

    for record in records:
        producer.produce(topic, on_delivery=report, **record)
    assert producer.flush(PATIENCE_S) == 0
    return reports


def _consume(consumer: librdkafka.Consumer, count: int) -> list[librdkafka.Message]:
    messages: list[librdkafka.Message] = []
    for _ in range(int(PATIENCE_S * 10)):
        for message in consumer.consume(count - len(messages), timeout=0.1):
            assert message.error() is None, message.error()
            messages.append(message)
        if len(messages) >= count:
            return messages
    raise AssertionError(f"{len(messages)} of {count} records came within {PATIENCE_S} s")


def _consumer(lab: KafkaClients, opened: list[librdkafka.Consumer], **settings: Any) -> librdkafka.Consumer:
    defaults = {
        "bootstrap.servers": lab.address,
        "group.id": unique("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 20_000,
        "heartbeat.interval.ms": 200,
    }
    consumer = librdkafka.Consumer({**defaults, **settings})
    opened.append(consumer)
    return consumer


async def test_what_one_client_writes_the_other_reads(lab: KafkaClients, consumers: list[librdkafka.Consumer]) -> None:
    topic = await lab.topic()
    headers = [("kind", b"Request"), ("none", None), ("empty", b""), ("kind", b"again")]
    given = {"key": b"k", "value": None, "headers": headers, "timestamp": 1_700_000_000_123}
    await asyncio.to_thread(_produce, _producer(lab), topic, [given])
    await (await lab.producer()).send_and_wait(topic, None, key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)

    records = await read_records(await lab.reader(topic), 2)
    consumer = _consumer(lab, consumers)
    consumer.subscribe([topic])
    messages = await asyncio.to_thread(_consume, consumer, 2)

    for record in records:
        assert (record.key, record.value, list(record.headers)) == (b"k", None, headers)
        assert record.timestamp == 1_700_000_000_123
    for message in messages:
        assert (message.key(), message.value(), message.headers()) == (b"k", None, headers)
        assert message.timestamp() == (librdkafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)


async def test_both_clients_put_a_key_into_the_same_partition(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=7)
    seeded = random.Random(7)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", "ключ".encode()] + [seeded.randbytes(n) for n in range(1, 60)]
    theirs = await asyncio.to_thread(_produce, _producer(lab), topic, [{"key": k, "value": b"v"} for k in keys])
    producer = await lab.producer()
    ours = {key: (await producer.send_and_wait(topic, b"v", key=key)).partition for key in keys}

    assert {message.key(): message.partition() for message in theirs} == ours
    assert len(set(ours.values())) == 7


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_kept_readable(
    lab: KafkaClients, consumers: list[librdkafka.Consumer], codec: str
) -> None:
    topic = await lab.topic()
    values = [f"much the same each time {n}".encode() * 50 for n in range(100)]
    producer = _producer(lab, **{"compression.type": codec, "linger.ms": 50})
    await asyncio.to_thread(_produce, producer, topic, [{"value": value} for value in values])

    consumer = _consumer(lab, consumers)
    consumer.subscribe([topic])
    messages = await asyncio.to_thread(_consume, consumer, 100)
    assert [message.value() for message in messages] == values
    if READABLE_BY_BOTH.get(codec, True):
        assert [record.value for record in await read_records(await lab.reader(topic), 100)] == values


@pytest.mark.parametrize("codec", [codec for codec, readable in READABLE_BY_BOTH.items() if readable])
async def test_our_compressed_batches_are_read_by_the_other_client(
    lab: KafkaClients, consumers: list[librdkafka.Consumer], codec: str
) -> None:
    topic = await lab.topic()
    values = [b"much the same each time" * 50] * 30
    await lab.put_batch(topic, [1_700_000_000_000] * 30, values=values, compression_type=codec)

    consumer = _consumer(lab, consumers)
    consumer.subscribe([topic])

    assert [m.value() for m in await asyncio.to_thread(_consume, consumer, 30)] == values


async def test_an_idempotent_producer_of_the_other_client(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    values = [f"{n}".encode() for n in range(2000)]
    records = [{"value": value, "partition": n % 2} for n, value in enumerate(values)]
    producer = _producer(lab, **{"enable.idempotence": True, "batch.num.messages": 100})
    await asyncio.to_thread(_produce, producer, topic, records)

    got = await read_records(await lab.reader(topic, range(2)), 2000)

    for partition in range(2):
        assert [r.value for r in got if r.partition == partition] == values[partition::2]


async def test_a_group_of_the_other_client_shares_and_commits(
    lab: KafkaClients, consumers: list[librdkafka.Consumer]
) -> None:
    topic, group = await lab.topic(partitions=4), unique("group")
    for partition in range(4):
        await lab.put(topic, [b"1", b"2"], partition=partition)
    members = [_consumer(lab, consumers, **{"group.id": group}) for _ in range(2)]

    def read_until_shared() -> None:
        for member in members:
            member.subscribe([topic])
        for _ in range(int(PATIENCE_S * 5)):
            for member in members:
                member.poll(0.1)
            owned = sorted(p.partition for member in members for p in member.assignment())
            if owned == [0, 1, 2, 3] and all(len(member.assignment()) == 2 for member in members):
                return
        raise AssertionError("the members never shared the partitions")

    await asyncio.to_thread(read_until_shared)
    offsets = [librdkafka.TopicPartition(topic, p, 1) for p in range(4)]
    for member in members:
        mine = {p.partition for p in member.assignment()}
        await asyncio.to_thread(member.commit, offsets=[o for o in offsets if o.partition in mine], asynchronous=False)

    committed = await (await lab.admin()).list_consumer_group_offsets(group)
    assert {p.partition: o.offset for p, o in committed.items()} == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_static_member_is_fenced_by_its_successor(
    lab: KafkaClients, consumers: list[librdkafka.Consumer]
) -> None:
    topic, group = await lab.topic(), unique("group")
    settings = {"group.id": group, "group.instance.id": "the one", "session.timeout.ms": 20_000}
    old, new = (_consumer(lab, consumers, **settings) for _ in range(2))

    def until_assigned(consumer: librdkafka.Consumer) -> None:
        consumer.subscribe([topic])
        for _ in range(int(PATIENCE_S * 10)):
            consumer.poll(0.1)
            if consumer.assignment():
                return
        raise AssertionError("no assignment came")

    def until_fenced(consumer: librdkafka.Consumer) -> librdkafka.KafkaError:
        for _ in range(int(PATIENCE_S * 10)):
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                return message.error()
        raise AssertionError("the old member was never told")

    await asyncio.to_thread(until_assigned, old)
    await asyncio.to_thread(until_assigned, new)
    error = await asyncio.to_thread(until_fenced, old)

    assert error.code() == librdkafka.KafkaError._FATAL
    assert "fenced" in str(error).lower()


async def test_times_and_ends_through_the_other_client(lab: KafkaClients, consumers: list[librdkafka.Consumer]) -> None:
    topic = await lab.topic()
    start = 1_700_000_000_000
    await lab.put_batch(topic, [start + 10 * n for n in range(20)])
    consumer = _consumer(lab, consumers)
    partition = librdkafka.TopicPartition(topic, 0)

    assert await asyncio.to_thread(consumer.get_watermark_offsets, partition, PATIENCE_S) == (0, 20)
    for timestamp, offset in ((0, 0), (start + 95, 10), (start + 190, 19), (start + 191, librdkafka.OFFSET_END)):
        asked = librdkafka.TopicPartition(topic, 0, timestamp)
        (found,) = await asyncio.to_thread(consumer.offsets_for_times, [asked], PATIENCE_S)
        assert found.offset == offset


async def test_too_large_a_record_is_refused_to_the_other_client(lab: KafkaClients) -> None:
    topic = await lab.topic()
    producer = _producer(lab, **{"message.max.bytes": 5_000_000})
    errors: list[librdkafka.KafkaError | None] = []
    producer.produce(topic, b"x" * 2_000_000, on_delivery=lambda error, _: errors.append(error))
    assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0

    assert [error and error.code() for error in errors] == [librdkafka.KafkaError.MSG_SIZE_TOO_LARGE]
