"""Test that old records are deleted by size and by age, that the others stay readable, and that no offset is reused."""

import time

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from tests.contract import wire
from tests.contract.lab import KafkaClients, read_records
from tests.support.waiting import until

# Apache Kafka looks at retention every second here (infra/kafka/server.properties), and deletes whole segments only;
# 1 MiB is the smallest segment that it takes.
SEGMENT = 1 << 20


async def test_a_partition_is_held_near_its_size(lab: KafkaClients) -> None:
    configs = {"retention.bytes": str(2 * SEGMENT), "segment.bytes": str(SEGMENT)}
    topic = await lab.topic(configs=configs)
    partition = TopicPartition(topic, 0)
    values = [f"{n:04}".encode() * 25_000 for n in range(80)]  # 8 MB, 100 kB each
    await lab.put(topic, values, max_batch_size=200_000)
    reader = await lab.reader(topic)

    async def has_shrunk() -> bool:
        begin = (await reader.beginning_offsets([partition]))[partition]
        # The broker may keep one segment more than the limit demands.
        return (80 - begin) * 100_000 <= 3 * SEGMENT + 200_000

    await until(has_shrunk, "old segments are deleted")
    await reader.seek_to_beginning(partition)
    (first,) = await read_records(reader, 1)  # one more segment may have gone just now
    assert (80 - first.offset) * 100_000 >= SEGMENT  # the broker deletes no more than the limit demands
    following = await read_records(reader, 79 - first.offset)
    assert [record.value for record in (first, *following)] == values[first.offset :]
    assert await reader.end_offsets([partition]) == {partition: 80}


async def test_records_that_are_too_old_go_and_offsets_go_on(lab: KafkaClients) -> None:
    topic = await lab.topic(configs={"retention.ms": "1000"})
    connection = await lab.connection()
    now = int(time.time() * 1000)
    await lab.put_batch(topic, [now - 10_000 + n for n in range(5)])

    async def is_empty() -> bool:
        return await wire.list_offset(connection, topic, wire.EARLIEST) == (wire.NONE, 5)

    await until(is_empty, "records older than their retention are deleted")
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 5)
    assert (await wire.fetch(connection, topic, 0))[0] == wire.OFFSET_OUT_OF_RANGE
    acknowledged = await (await lab.producer()).send_and_wait(topic, b"new", partition=0)
    assert acknowledged.offset == 5


async def test_records_that_are_young_enough_stay(lab: KafkaClients) -> None:
    topic = await lab.topic(configs={"retention.ms": "3600000", "segment.bytes": str(SEGMENT)})
    connection = await lab.connection()
    await lab.put_batch(topic, [int(time.time() * 1000) - 60_000] * 5)
    expiring = await lab.topic(configs={"retention.ms": "1000"})
    await lab.put_batch(expiring, [int(time.time() * 1000) - 60_000] * 5)

    async def other_topic_was_cleaned() -> bool:
        return await wire.list_offset(connection, expiring, wire.EARLIEST) == (wire.NONE, 5)

    await until(other_topic_was_cleaned, "retention has been looked at")
    assert await wire.list_offset(connection, topic, wire.EARLIEST) == (wire.NONE, 0)


@pytest.mark.parametrize("policy", ["earliest", "none"])
async def test_a_reader_whose_place_was_deleted_is_told(lab: KafkaClients, policy: str) -> None:
    topic = await lab.topic(configs={"retention.ms": "1000"})
    connection = await lab.connection()
    await lab.put_batch(topic, [int(time.time() * 1000) - 10_000] * 5)

    async def is_empty() -> bool:
        return await wire.list_offset(connection, topic, wire.EARLIEST) == (wire.NONE, 5)

    await until(is_empty, "records older than their retention are deleted")
    reader = await lab.reader(topic, auto_offset_reset=policy)
    reader.seek(TopicPartition(topic, 0), 2)
    later = int(time.time() * 1000) + 600_000  # so late that retention keeps it until it is read
    await lab.put_batch(topic, [later], values=[b"kept"])

    if policy == "none":
        with pytest.raises(OffsetOutOfRangeError):
            await read_records(reader, 1)
    else:
        assert [record.value for record in await read_records(reader, 1)] == [b"kept"]
