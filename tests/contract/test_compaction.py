"""Test that a compacted topic keeps the newest record of every key.

The remaining records keep their offsets, and readers skip the offsets of removed records.
"""

from aiokafka import TopicPartition

from tests.contract import wire
from tests.contract.lab import KafkaClients, read_records
from tests.support.waiting import until

SEGMENT = 1 << 20
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT),
    "min.cleanable.dirty.ratio": "0.01",  # Apache Kafka's cleaner; the embedded broker waits for half of the log
}
KEYS = 8
INVALID_RECORD = 87


async def test_the_newest_record_of_every_key_stays_at_its_offset(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=CONFIG)
    partition = TopicPartition(topic, 0)
    producer = await lab.producer()
    written: list[tuple[bytes, bytes]] = []
    for number in range(320):  # 6.4 MB, of which 160 kB are current
        key, value = b"key-%d" % (number % KEYS), b"%04d" % number * 5_000
        assert (await producer.send_and_wait(topic, value, key=key, partition=0)).offset == number
        written.append((key, value))
    await producer.send_and_wait(topic, None, key=b"key-0", partition=0)
    written.append((b"key-0", b""))

    async def all_that_is_left() -> list[tuple[int, bytes, bytes | None]]:
        reader = await lab.reader(topic)
        found = []
        while not found or found[-1][0] < len(written) - 1:
            found += [(record.offset, record.key, record.value) for record in await read_records(reader, 1)]
        await reader.stop()
        return found

    left: list[tuple[int, bytes, bytes | None]] = []

    async def was_compacted() -> bool:
        left[:] = await all_that_is_left()
        return len(left) < len(written) // 2

    await until(was_compacted, "records whose key was written again are removed", within_s=60, every_s=0.5)
    assert left == sorted(left)
    assert all((key, value or b"") == written[offset] for offset, key, value in left), "what stays is as it was written"
    newest = {key: offset for offset, (key, _) in enumerate(written)}
    assert set(newest.values()) <= {offset for offset, *_ in left}
    assert left[-1] == (320, b"key-0", None), "that a key was deleted is told as well"

    reader = await lab.reader(topic)
    assert await reader.beginning_offsets([partition]) == {partition: 0}
    assert await reader.end_offsets([partition]) == {partition: 321}
    offsets = {offset for offset, *_ in left}
    gone = next(offset for offset in range(321) if offset not in offsets)
    reader.seek(partition, gone)
    following = (await read_records(reader, 1))[0]  # Apache Kafka may have removed more by now
    assert following.offset > gone
    assert (following.key, following.value) == written[following.offset]
    assert (await producer.send_and_wait(topic, b"next", key=b"key-1", partition=0)).offset == 321


async def test_a_record_without_a_key_is_refused(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=CONFIG)
    connection = await lab.connection()
    error, _ = await wire.produce(connection, topic, wire.batch([b"no key"]))
    assert error == INVALID_RECORD
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 0)
