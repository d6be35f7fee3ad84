"""Test `message.timestamp.type=LogAppendTime`: each record gets the broker's time, not the producer's."""

import asyncio
import time

import confluent_kafka as librdkafka
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.record.default_records import DefaultRecordBatch

from tests.contract import wire
from tests.contract.lab import PATIENCE_S, KafkaClients, read_records, unique
from tests.support.waiting import until

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
CREATE_TIME = 0
LOG_APPEND_TIME = 1
HOUR_MS = 3_600_000
GZIP = 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _stamps(lab: KafkaClients, topic: str, count: int) -> list[tuple[int, int, int]]:
    """Return offset, timestamp and timestamp type of the first `count` records."""
    records = await read_records(await lab.reader(topic), count)
    return [(record.offset, record.timestamp, record.timestamp_type) for record in records]


@pytest.mark.parametrize("ahead_ms", [-10_000 * HOUR_MS, -HOUR_MS, 24 * HOUR_MS])
async def test_a_record_has_the_brokers_time_whatever_its_writers_clock_says(lab: KafkaClients, ahead_ms: int) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    before = _now_ms()

    producer = await lab.producer()
    acknowledged = await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=before + ahead_ms)

    after = _now_ms()
    ((_, stamp, kind),) = await _stamps(lab, topic, 1)
    assert kind == LOG_APPEND_TIME
    assert before <= stamp <= after
    assert (acknowledged.timestamp, acknowledged.timestamp_type) == (stamp, LOG_APPEND_TIME)


async def test_times_never_go_back_whatever_the_writers_clocks_say(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    producers = [await lab.producer() for _ in range(3)]

    async def write(producer: AIOKafkaProducer, ahead_ms: int) -> None:
        for _ in range(50):
            await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=_now_ms() + ahead_ms)

    await asyncio.gather(*(write(*each) for each in zip(producers, (-HOUR_MS, 0, 24 * HOUR_MS), strict=True)))

    stamps = await _stamps(lab, topic, 150)
    assert [offset for offset, *_ in stamps] == list(range(150))
    assert [stamp for _, stamp, _ in stamps] == sorted(stamp for _, stamp, _ in stamps)
    assert max(stamp for _, stamp, _ in stamps) <= _now_ms()


async def test_all_records_of_a_batch_have_one_time_and_the_checksum_is_right(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    connection = await lab.connection()
    sent = wire.batch([b"%d" % number for number in range(64)])

    error, offset, stamp = await wire.produce_timed(connection, topic, sent)

    assert (error, offset) == (wire.NONE, 0)
    _, _, kept = await wire.fetch(connection, topic, 0)
    batch = DefaultRecordBatch(bytearray(kept))
    assert batch.validate_crc()
    assert [(record.timestamp, record.timestamp_type) for record in batch] == [(stamp, LOG_APPEND_TIME)] * 64
    assert len(kept) == len(sent)
    assert bytes(kept[61:]) == sent[61:]  # only the header was written on


@pytest.mark.parametrize("codec", [0, GZIP])
async def test_a_compressed_batch_is_stamped_too(lab: KafkaClients, codec: int) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    connection = await lab.connection()
    values = [b"much the same each time" * 20] * 30

    error, _, stamp = await wire.produce_timed(connection, topic, wire.batch(values, compression=codec))

    assert error == wire.NONE
    records = await read_records(await lab.reader(topic), 30)
    assert [record.value for record in records] == values
    assert {(record.timestamp, record.timestamp_type) for record in records} == {(stamp, LOG_APPEND_TIME)}


async def test_a_place_is_found_by_the_brokers_time(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    connection = await lab.connection()
    stamps = []
    for number in range(3):
        records = wire.batch([b"a", b"b"], timestamp=1_700_000_000_000 - number)
        stamps.append((await wire.produce_timed(connection, topic, records))[2])
        await asyncio.sleep(0.01)
    reader = await lab.reader(topic)
    partition = TopicPartition(topic, 0)

    async def found(at: int) -> tuple[int, int] | None:
        answer = (await reader.offsets_for_times({partition: at}))[partition]
        return None if answer is None else (answer.offset, answer.timestamp)

    for number, stamp in enumerate(stamps):
        assert await found(stamp) == (2 * number, stamp)
    assert await found(0) == (0, stamps[0])
    assert await found(stamps[0] + 1) == (2, stamps[1])
    assert await found(stamps[2] + 1) is None


@pytest.mark.parametrize("whose", ["CreateTime", "LogAppendTime"])
async def test_produce_response_has_a_time_only_where_it_is_the_brokers(lab: KafkaClients, whose: str) -> None:
    topic = await lab.topic(configs={"message.timestamp.type": whose})
    before = _now_ms()

    _, _, stamp = await wire.produce_timed(await lab.connection(), topic, wire.batch([b"v"]))

    assert stamp == -1 if whose == "CreateTime" else before <= stamp <= _now_ms()


async def test_a_retry_is_told_the_time_of_the_first_append(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    once = wire.batch([b"1", b"2"], producer_id=producer_id, epoch=epoch, sequence=0)
    first = await wire.produce_timed(connection, topic, once)
    await asyncio.sleep(0.02)

    assert await wire.produce_timed(connection, topic, once) == first
    assert await wire.list_offset(connection, topic, wire.LATEST) == (wire.NONE, 2)


async def test_a_producer_may_not_say_when_its_batch_was_appended(lab: KafkaClients) -> None:
    connection = await lab.connection()
    source = await lab.topic(configs=APPEND_TIME)
    await wire.produce(connection, source, wire.batch([b"v"]))
    _, _, stamped = await wire.fetch(connection, source, 0)
    topics = {
        kind: await lab.topic(configs={"message.timestamp.type": kind}) for kind in ("LogAppendTime", "CreateTime")
    }

    assert await wire.produce(connection, topics["LogAppendTime"], bytes(stamped)) == (wire.INVALID_TIMESTAMP, -1)
    assert await wire.produce(connection, topics["CreateTime"], bytes(stamped)) == (wire.NONE, 0)
    assert [kind for *_, kind in await _stamps(lab, topics["CreateTime"], 1)] == [CREATE_TIME]


async def test_a_topic_that_is_altered_keeps_the_times_of_what_stands_there(lab: KafkaClients) -> None:
    topic = await lab.topic()
    assert await lab.topic_config(topic, "message.timestamp.type") == "CreateTime"
    old = 1_700_000_000_000
    await lab.put_batch(topic, [old, old + 5])
    connection = await lab.connection()
    before = _now_ms()

    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "-1", **APPEND_TIME})
    (answer,) = await (await lab.admin()).alter_configs([resource])
    assert answer.resources[0][0] == wire.NONE
    assert await lab.topic_config(topic, "message.timestamp.type") == "LogAppendTime"

    async def is_in_effect() -> bool:
        return (await wire.produce_timed(connection, topic, wire.batch([b"v"])))[2] >= before

    await until(is_in_effect, "the altered setting is in effect")
    (_, end) = await wire.list_offset(connection, topic, wire.LATEST)
    stamps = await _stamps(lab, topic, end)
    assert stamps[:2] == [(0, old, CREATE_TIME), (1, old + 5, CREATE_TIME)]
    assert stamps[-1][2] == LOG_APPEND_TIME
    reader, partition = await lab.reader(topic), TopicPartition(topic, 0)
    found = (await reader.offsets_for_times({partition: old + 1}))[partition]
    assert (found.offset, found.timestamp) == (1, old + 5)
    found = (await reader.offsets_for_times({partition: stamps[-1][1]}))[partition]
    assert found.timestamp == stamps[-1][1]


async def test_records_expire_by_the_brokers_time(lab: KafkaClients) -> None:
    kept = await lab.topic(configs={"retention.ms": "3600000", **APPEND_TIME})
    expiring = await lab.topic(configs={"retention.ms": "1000", **APPEND_TIME})
    connection = await lab.connection()
    for topic, timestamp in ((kept, _now_ms() - 24 * HOUR_MS), (expiring, _now_ms() + HOUR_MS // 2)):
        await wire.produce(connection, topic, wire.batch([b"v"], timestamp=timestamp))

    async def has_expired() -> bool:
        return await wire.list_offset(connection, expiring, wire.EARLIEST) == (wire.NONE, 1)

    await until(has_expired, "a record that claims to be of the future expires")
    assert await wire.list_offset(connection, kept, wire.EARLIEST) == (wire.NONE, 0)


async def test_the_other_client_is_told_the_same(lab: KafkaClients) -> None:
    topic = await lab.topic(configs=APPEND_TIME)
    reported: list[tuple[int, int]] = []
    before = _now_ms()

    def write() -> None:
        producer = librdkafka.Producer({"bootstrap.servers": lab.address, "enable.idempotence": True})
        producer.produce(topic, b"v", timestamp=1, on_delivery=lambda _, message: reported.append(message.timestamp()))
        assert producer.flush(PATIENCE_S) == 0

    def read() -> tuple[int, int]:
        settings = {"bootstrap.servers": lab.address, "group.id": unique("group"), "auto.offset.reset": "earliest"}
        consumer = librdkafka.Consumer(settings)
        try:
            consumer.assign([librdkafka.TopicPartition(topic, 0, 0)])
            (message,) = consumer.consume(1, PATIENCE_S)
            return message.timestamp()
        finally:
            consumer.close()

    await asyncio.to_thread(write)
    kind, stamp = await asyncio.to_thread(read)

    assert kind == librdkafka.TIMESTAMP_LOG_APPEND_TIME
    assert before <= stamp <= _now_ms()
    assert [report[1] for report in reported] == [stamp]
