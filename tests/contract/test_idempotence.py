"""Test that a producer that retries writes no record twice, because the broker checks sequence numbers."""

import asyncio

from tests.contract import wire
from tests.contract.lab import KafkaClients, read_records


async def _values(lab: KafkaClients, topic: str, count: int) -> list[bytes]:
    return [record.value for record in await read_records(await lab.reader(topic), count)]


async def test_a_repeated_batch_is_acknowledged_and_not_appended(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    records = wire.batch([b"1", b"2", b"3"], producer_id=producer_id, epoch=epoch, sequence=0)

    assert await wire.produce(connection, topic, records) == (wire.NONE, 0)
    assert await wire.produce(connection, topic, records) == (wire.NONE, 0)
    following = wire.batch([b"4"], producer_id=producer_id, epoch=epoch, sequence=3)
    assert await wire.produce(connection, topic, following) == (wire.NONE, 3)

    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 4)
    assert await _values(lab, topic, 4) == [b"1", b"2", b"3", b"4"]


async def test_the_retry_may_come_over_another_connection(lab: KafkaClients) -> None:
    topic = await lab.topic()
    first, second = await lab.connection(), await lab.connection()
    producer_id, epoch = await wire.producer_id(first)
    records = wire.batch([b"once"], producer_id=producer_id, epoch=epoch, sequence=0)

    assert await wire.produce(first, topic, records) == (wire.NONE, 0)
    assert await wire.produce(second, topic, records) == (wire.NONE, 0)

    assert await wire.list_offset(first, topic, wire.LATEST) == (wire.NONE, 1)


async def test_any_of_the_last_five_batches_is_recognised(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    batches = [wire.batch([b"a", b"b"], producer_id=producer_id, epoch=epoch, sequence=2 * n) for n in range(5)]
    for n, records in enumerate(batches):
        assert await wire.produce(connection, topic, records) == (wire.NONE, 2 * n)

    for n, records in enumerate(batches):
        assert await wire.produce(connection, topic, records) == (wire.NONE, 2 * n)
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 10)


async def test_a_gap_is_refused_and_the_right_sequence_goes_on(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)

    async def produce(sequence: int) -> tuple[int, int]:
        records = wire.batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=sequence)
        return await wire.produce(connection, topic, records)

    assert await produce(0) == (wire.NONE, 0)
    assert (await produce(2))[0] == wire.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produce(1) == (wire.NONE, 1)
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 2)


async def test_sequences_are_counted_for_each_partition(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    records = wire.batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=0)

    assert await wire.produce(connection, topic, records, partition=0) == (wire.NONE, 0)
    assert await wire.produce(connection, topic, records, partition=1) == (wire.NONE, 0)


async def test_an_old_epoch_is_fenced(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)

    async def produce(with_epoch: int, sequence: int) -> int:
        records = wire.batch([b"v"], producer_id=producer_id, epoch=with_epoch, sequence=sequence)
        return (await wire.produce(connection, topic, records))[0]

    assert await produce(epoch, 0) == wire.NONE
    assert await produce(epoch + 1, 0) == wire.NONE
    assert await produce(epoch, 1) == wire.INVALID_PRODUCER_EPOCH


async def test_a_new_epoch_starts_at_sequence_zero(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    first = wire.batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=0)
    assert await wire.produce(connection, topic, first) == (wire.NONE, 0)

    jump = wire.batch([b"v"], producer_id=producer_id, epoch=epoch + 1, sequence=5)

    assert (await wire.produce(connection, topic, jump))[0] == wire.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_every_producer_has_its_own_id(lab: KafkaClients) -> None:
    connections = [await lab.connection() for _ in range(3)]

    ids = await asyncio.gather(*[wire.producer_id(c) for c in connections * 5])

    assert len({producer_id for producer_id, _ in ids}) == 15
    assert {epoch for _, epoch in ids} == {0}


async def test_a_batch_whose_checksum_is_wrong_is_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    records = bytearray(wire.batch([b"value"]))
    records[-2] ^= 0x01

    assert (await wire.produce(connection, topic, bytes(records)))[0] == wire.CORRUPT_MESSAGE
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 0)
    assert await wire.produce(connection, topic, wire.batch([b"value"])) == (wire.NONE, 0)


async def test_an_unknown_topic_or_partition_is_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()

    error, _ = await wire.produce(connection, topic, wire.batch([b"v"]), partition=1)
    assert error == wire.UNKNOWN_TOPIC_OR_PARTITION
    error, _ = await wire.produce(connection, "never-created", wire.batch([b"v"]))
    assert error == wire.UNKNOWN_TOPIC_OR_PARTITION


async def test_acks_zero_and_one(lab: KafkaClients) -> None:
    topic = await lab.topic()
    for acks in (0, 1):
        producer = await lab.producer(acks=acks, enable_idempotence=False)
        for n in range(20):
            await producer.send_and_wait(topic, f"{acks}:{n}".encode(), partition=0)
        await producer.flush()

    values = await _values(lab, topic, 40)

    assert sorted(values) == sorted(f"{acks}:{n}".encode() for acks in (0, 1) for n in range(20))
