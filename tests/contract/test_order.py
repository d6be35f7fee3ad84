"""Test that a consumer reads the records of a partition unchanged, in the order in which they were produced."""

import asyncio

import pytest
from aiokafka import TopicPartition

from tests.contract.lab import KafkaClients, nothing_comes, read_records


async def test_records_of_a_partition_come_in_the_order_they_were_produced(lab: KafkaClients) -> None:
    topic = await lab.topic()
    values = [f"{n}".encode() for n in range(500)]
    await lab.put(topic, values, max_batch_size=1000)

    records = await read_records(await lab.reader(topic), 500)

    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(500))


async def test_what_was_acknowledged_is_what_is_read(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=3)
    producer = await lab.producer()
    acknowledged = [await producer.send_and_wait(topic, b"v", key=f"{n}".encode()) for n in range(12)]

    records = await read_records(await lab.reader(topic, range(3)), 12)

    assert {(r.partition, r.offset, r.timestamp) for r in records} == {
        (a.partition, a.offset, a.timestamp) for a in acknowledged
    }


async def test_several_producers_share_a_partition_and_each_keeps_its_order(lab: KafkaClients) -> None:
    topic = await lab.topic()
    producers = [await lab.producer() for _ in range(3)]

    async def produce(number: int) -> None:
        for n in range(100):
            await producers[number].send(topic, f"{number}:{n}".encode(), partition=0)
        await producers[number].flush()

    await asyncio.gather(*[produce(number) for number in range(3)])
    values = [record.value.decode() for record in await read_records(await lab.reader(topic), 300)]

    for number in range(3):
        assert [v for v in values if v.startswith(f"{number}:")] == [f"{number}:{n}" for n in range(100)]


@pytest.mark.parametrize(
    ("key", "value"), [(b"k", None), (None, b"v"), (b"", b"v"), (b"k", b""), (b"\x00\xff", b"\xff\x00")]
)
async def test_null_and_empty_are_different(lab: KafkaClients, key: bytes | None, value: bytes | None) -> None:
    topic = await lab.topic()
    producer = await lab.producer()
    await producer.send_and_wait(topic, value, key=key)

    (record,) = await read_records(await lab.reader(topic), 1)

    assert (record.key, record.value) == (key, value)


async def test_the_time_that_the_producer_gave_is_kept(lab: KafkaClients) -> None:
    topic = await lab.topic()
    producer = await lab.producer()
    times = [1_700_000_000_123, 1_600_000_000_456, 1_700_000_000_124]
    for time in times:
        await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=time)

    records = await read_records(await lab.reader(topic), 3)

    assert [record.timestamp for record in records] == times
    assert {record.timestamp_type for record in records} == {0}  # CreateTime


async def test_two_consumers_of_one_partition_both_read_all_of_it(lab: KafkaClients) -> None:
    topic = await lab.topic()
    first, second = await lab.reader(topic), await lab.reader(topic)
    await lab.put(topic, [b"1", b"2", b"3"])

    assert (
        [r.value for r in await read_records(first, 3)]
        == [r.value for r in await read_records(second, 3)]
        == [b"1", b"2", b"3"]
    )


async def test_one_consumer_reads_many_partitions(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=24)
    producer = await lab.producer()
    for n in range(10):
        await asyncio.gather(*[producer.send_and_wait(topic, f"{n}".encode(), partition=p) for p in range(24)])

    records = await read_records(await lab.reader(topic, range(24)), 240)

    for partition in range(24):
        assert [r.value for r in records if r.partition == partition] == [f"{n}".encode() for n in range(10)]


async def test_a_busy_partition_does_not_starve_the_others(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    await lab.put(topic, [b"x" * 50_000 for _ in range(60)], partition=0)
    await lab.put(topic, [b"small"], partition=1)

    reader = await lab.reader(topic, range(2), max_partition_fetch_bytes=100_000, fetch_max_bytes=100_000)
    records = await read_records(reader, 61)

    assert [record.partition for record in records].count(1) == 1


async def test_a_record_larger_than_the_fetch_limit_is_still_delivered(lab: KafkaClients) -> None:
    topic = await lab.topic()
    values = [b"a" * 100_000, b"b" * 100_000, b"c"]
    for value in values:
        await lab.put(topic, [value])

    reader = await lab.reader(topic, max_partition_fetch_bytes=1000, fetch_max_bytes=1000)

    assert [record.value for record in await read_records(reader, 3)] == values


async def test_a_paused_partition_keeps_its_place(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    reader = await lab.reader(topic, range(2))
    reader.pause(TopicPartition(topic, 0))
    await lab.put(topic, [b"held"], partition=0)
    await lab.put(topic, [b"free"], partition=1)

    assert [record.value for record in await read_records(reader, 1)] == [b"free"]
    assert await nothing_comes(reader)
    reader.resume(TopicPartition(topic, 0))
    assert [record.value for record in await read_records(reader, 1)] == [b"held"]
