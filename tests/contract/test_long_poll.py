"""Tests of long polling: a fetch waits at the broker until a record is appended."""

import asyncio
import time

from tests.contract import wire
from tests.contract.lab import KafkaClients, read_records

WAIT_MS = 28_000
# A fetch that returns within this time was woken by the record: its wait is not over yet. This is no speed test.
WOKEN_S = WAIT_MS / 1000 / 2


async def test_a_waiting_fetch_is_woken_by_a_record(lab: KafkaClients) -> None:
    topic = await lab.topic()
    reader = await lab.reader(topic, fetch_max_wait_ms=WAIT_MS)
    waiting = asyncio.create_task(read_records(reader, 1))
    await asyncio.sleep(0.5)
    assert not waiting.done()

    sent = time.monotonic()
    await lab.put(topic, [b"news"])
    (record,) = await waiting

    assert record.value == b"news"
    assert time.monotonic() - sent < WOKEN_S


async def test_a_fetch_that_waits_on_many_partitions_is_woken_by_any_of_them(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=12)
    reader = await lab.reader(topic, range(12), fetch_max_wait_ms=WAIT_MS)
    producer = await lab.producer()

    for partition in (11, 0, 5):
        waiting = asyncio.create_task(read_records(reader, 1))
        await asyncio.sleep(0.2)
        sent = time.monotonic()
        await producer.send_and_wait(topic, b"news", partition=partition)
        (record,) = await waiting
        assert record.partition == partition
        assert time.monotonic() - sent < WOKEN_S


async def test_all_who_wait_on_a_partition_are_woken(lab: KafkaClients) -> None:
    topic = await lab.topic()
    readers = [await lab.reader(topic, fetch_max_wait_ms=WAIT_MS) for _ in range(5)]
    waiting = [asyncio.create_task(read_records(reader, 1)) for reader in readers]
    await asyncio.sleep(0.5)

    sent = time.monotonic()
    await lab.put(topic, [b"news"])
    await asyncio.gather(*waiting)

    assert time.monotonic() - sent < WOKEN_S


async def test_a_fetch_with_nothing_to_read_waits_as_long_as_it_asked(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()

    asked = time.monotonic()
    error, high_watermark, records = await wire.fetch(connection, topic, 0, max_wait_ms=700)

    assert time.monotonic() - asked >= 0.65
    assert (error, high_watermark, records) == (wire.NONE, 0, b"")


async def test_a_fetch_that_asks_for_more_bytes_waits_for_them(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    waiting = asyncio.ensure_future(
        wire.fetch(connection, topic, 0, max_wait_ms=WAIT_MS, min_bytes=5000, max_bytes=100_000)
    )
    producer = await lab.producer()
    await producer.send_and_wait(topic, b"x" * 1000)
    await asyncio.sleep(0.3)
    assert not waiting.done()

    sent = time.monotonic()
    await producer.send_and_wait(topic, b"y" * 6000)
    error, _, records = await waiting

    assert error == wire.NONE
    assert len(records) > 7000
    assert time.monotonic() - sent < WOKEN_S


async def test_an_error_in_one_partition_answers_at_once(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()

    asked = time.monotonic()
    error, *_ = await wire.fetch(connection, topic, 99, max_wait_ms=WAIT_MS)

    assert error == wire.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - asked < WOKEN_S
