"""Test seeking in a partition: by offset, by time, to the beginning and to the end.

Resume, replay and recovery depend on seeking.
"""

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from tests.contract import wire
from tests.contract.lab import KafkaClients, nothing_comes, read_records
from tests.support.waiting import until

START = 1_700_000_000_000


async def _offset_for(consumer: AIOKafkaConsumer, topic: str, timestamp: int) -> tuple[int, int] | None:
    partition = TopicPartition(topic, 0)
    found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
    return None if found is None else (found.offset, found.timestamp)


async def test_the_ends_of_an_empty_partition(lab: KafkaClients) -> None:
    topic = await lab.topic()
    reader = await lab.reader(topic)
    partition = TopicPartition(topic, 0)

    assert await reader.beginning_offsets([partition]) == {partition: 0}
    assert await reader.end_offsets([partition]) == {partition: 0}
    assert await reader.offsets_for_times({partition: 0}) == {partition: None}


async def test_the_ends_count_records_not_batches(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    await lab.put_batch(topic, [START + n for n in range(7)])
    await lab.put_batch(topic, [START + n for n in range(5)])
    reader = await lab.reader(topic, range(2))
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    assert await reader.beginning_offsets([first, second]) == {first: 0, second: 0}
    assert await reader.end_offsets([first, second]) == {first: 12, second: 0}


@pytest.mark.parametrize("offset", range(8))
async def test_seek_to_an_offset_inside_a_batch(lab: KafkaClients, offset: int) -> None:
    topic = await lab.topic()
    await lab.put_batch(topic, [START + n for n in range(5)])
    await lab.put_batch(topic, [START + n for n in range(5, 8)])
    reader = await lab.reader(topic)

    reader.seek(TopicPartition(topic, 0), offset)

    assert [record.offset for record in await read_records(reader, 8 - offset)] == list(range(offset, 8))


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, (0, START)),
        (START - 1, (0, START)),
        (START, (0, START)),
        (START + 1, (1, START + 100)),
        (START + 100, (1, START + 100)),
        (START + 250, (3, START + 300)),
        (START + 400, (4, START + 400)),
        (START + 401, (5, START + 500)),
        (START + 700, (7, START + 700)),
        (START + 701, None),
    ],
)
async def test_seek_by_time_finds_the_record_not_its_batch(
    lab: KafkaClients, timestamp: int, expected: tuple[int, int] | None
) -> None:
    topic = await lab.topic()
    await lab.put_batch(topic, [START + 100 * n for n in range(5)])
    await lab.put_batch(topic, [START + 100 * n for n in range(5, 8)])

    assert await _offset_for(await lab.reader(topic), topic, timestamp) == expected


async def test_seek_by_time_where_times_go_back_and_repeat(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put_batch(topic, [START + 50, START + 20, START + 80, START + 80, START + 10])
    await lab.put_batch(topic, [START + 30, START + 90])
    reader = await lab.reader(topic)

    assert await _offset_for(reader, topic, START + 15) == (0, START + 50)
    assert await _offset_for(reader, topic, START + 60) == (2, START + 80)
    assert await _offset_for(reader, topic, START + 80) == (2, START + 80)
    assert await _offset_for(reader, topic, START + 81) == (6, START + 90)


async def test_seek_by_time_inside_a_compressed_batch(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put_batch(
        topic, [START + n for n in range(50)], values=[b"much the same" * 20] * 50, compression_type="gzip"
    )

    assert await _offset_for(await lab.reader(topic), topic, START + 33) == (33, START + 33)


async def test_seek_by_time_in_several_partitions_at_once(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=3)
    producer = await lab.producer()
    for partition in range(2):
        for n in range(5):
            await producer.send_and_wait(topic, b"v", partition=partition, timestamp_ms=START + n + partition)
    reader = await lab.reader(topic, range(3))

    found = await reader.offsets_for_times({TopicPartition(topic, p): START + 3 for p in range(3)})

    assert {p.partition: at and at.offset for p, at in found.items()} == {0: 3, 1: 2, 2: None}


async def test_seek_to_beginning_and_to_end(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"1", b"2"])
    reader = await lab.reader(topic)
    partition = TopicPartition(topic, 0)

    await reader.seek_to_end(partition)
    assert await reader.position(partition) == 2
    await lab.put(topic, [b"3"])
    assert [record.value for record in await read_records(reader, 1)] == [b"3"]
    await reader.seek_to_beginning(partition)
    assert [record.value for record in await read_records(reader, 3)] == [b"1", b"2", b"3"]
    assert reader.highwater(partition) == 3


async def test_a_consumer_that_starts_at_the_end_reads_only_what_comes_later(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"old"])
    reader = await lab.reader(topic, auto_offset_reset="latest")
    assert await reader.position(TopicPartition(topic, 0)) == 1

    await lab.put(topic, [b"new"])

    assert [record.value for record in await read_records(reader, 1)] == [b"new"]


async def test_reading_at_the_end_waits_and_beyond_it_is_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"1", b"2"])
    connection = await lab.connection()

    assert await wire.fetch(connection, topic, 2) == (wire.NONE, 2, b"")
    for beyond in (3, 10**12):
        error, *_ = await wire.fetch(connection, topic, beyond)
        assert error == wire.OFFSET_OUT_OF_RANGE


async def test_out_of_range_is_told_to_a_consumer_that_wants_to_know(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"1"])
    reader = await lab.reader(topic, auto_offset_reset="none")
    reader.seek(TopicPartition(topic, 0), 1000)

    with pytest.raises(OffsetOutOfRangeError):
        await read_records(reader, 1)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", b"1"), ("latest", b"later")])
async def test_out_of_range_starts_again_as_the_consumer_chose(lab: KafkaClients, policy: str, expected: bytes) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"1"])
    reader = await lab.reader(topic, auto_offset_reset=policy)
    partition = TopicPartition(topic, 0)
    reader.seek(partition, 1000)

    async def has_started_again() -> bool:
        return await reader.position(partition) == 1

    if policy == "latest":  # what comes before that is not read
        await until(has_started_again, "the reader is at the end")
        assert await nothing_comes(reader)
    await lab.put(topic, [b"later"])

    assert (await read_records(reader, 1))[0].value == expected


async def test_offsets_of_an_unknown_partition_are_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()

    for timestamp in (wire.EARLIEST, wire.LATEST, START):
        error, _ = await wire.list_offset(connection, topic, timestamp, partition=7)
        assert error == wire.UNKNOWN_TOPIC_OR_PARTITION
