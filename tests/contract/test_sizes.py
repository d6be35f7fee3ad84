"""Test that the broker accepts records of 1 MB, refuses larger ones with Kafka's error, and then continues to serve.

A topic can set another limit.
"""

import os

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from tests.contract.lab import KafkaClients, read_records

MB = 1_000_000


async def test_records_of_one_megabyte(lab: KafkaClients) -> None:
    topic = await lab.topic()
    values = [os.urandom(MB) for _ in range(4)]
    producer = await lab.producer(max_request_size=2 * MB)
    for value in values:
        await producer.send_and_wait(topic, value, partition=0)

    records = await read_records(await lab.reader(topic), 4)

    assert [record.value for record in records] == values


async def test_a_record_beyond_the_limit_is_refused_and_smaller_ones_go_on(lab: KafkaClients) -> None:
    topic = await lab.topic()
    producer = await lab.producer(max_request_size=4 * MB)

    with pytest.raises(MessageSizeTooLargeError):
        await producer.send_and_wait(topic, b"x" * 2 * MB, partition=0)

    # A new producer: the sequence of the refused batch is lost to the one that sent it.
    await lab.put(topic, [b"small"])
    assert [record.value for record in await read_records(await lab.reader(topic), 1)] == [b"small"]


async def test_a_topic_may_allow_larger_records(lab: KafkaClients) -> None:
    topic = await lab.topic(configs={"max.message.bytes": str(3 * MB)})
    producer = await lab.producer(max_request_size=4 * MB)

    await producer.send_and_wait(topic, b"x" * 2 * MB, partition=0)

    (record,) = await read_records(await lab.reader(topic), 1)
    assert len(record.value) == 2 * MB


async def test_a_topic_may_allow_only_smaller_records(lab: KafkaClients) -> None:
    topic = await lab.topic(configs={"max.message.bytes": "2000"})
    producer = await lab.producer()

    await producer.send_and_wait(topic, b"x" * 1500, partition=0)
    with pytest.raises(MessageSizeTooLargeError):
        await producer.send_and_wait(topic, b"x" * 2500, partition=0)
