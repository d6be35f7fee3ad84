"""Test that acknowledged data survives a restart of the broker, and that clients then reconnect by themselves."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from tests.contract import wire
from tests.contract.lab import KafkaClients, open_clients, read_records, unique
from tests.contract.test_groups import Journal
from tests.support.brokers import Broker
from tests.support.waiting import until

ENDINGS: list[Callable[[Broker], object]] = [Broker.stop, Broker.kill]
both_endings = pytest.mark.parametrize("end", ENDINGS, ids=["stopped", "killed"])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence aiokafka, which logs many times a second that the broker is away."""
    caplog.set_level(logging.CRITICAL, "aiokafka")


@pytest.fixture
async def lab(own_broker: Broker) -> AsyncIterator[KafkaClients]:
    async with open_clients(own_broker.address) as opened:
        yield opened


async def _restart(broker: Broker, end: Callable[[Broker], object]) -> None:
    """End the broker with ``end``, and start it again. The test's clients run meanwhile, and try to reconnect."""
    await asyncio.to_thread(end, broker)
    await asyncio.sleep(0.3)
    broker.launch()
    await asyncio.to_thread(broker.wait_until_ready)


@both_endings
async def test_clients_carry_on_and_nothing_is_lost_or_doubled(
    own_broker: Broker, lab: KafkaClients, end: Callable[[Broker], object]
) -> None:
    topic = await lab.topic()
    producer = await lab.producer(request_timeout_ms=60_000)
    reader = await lab.reader(topic)
    stop_after = asyncio.Event()

    async def produce() -> int:
        sent: list[asyncio.Future[RecordMetadata]] = []
        while not stop_after.is_set():
            sent.append(await producer.send(topic, f"{len(sent)}".encode(), partition=0))
            await asyncio.sleep(0.005)
        await asyncio.gather(*sent)
        return len(sent)

    producing = asyncio.create_task(produce())
    await read_records(reader, 20)
    await _restart(own_broker, end)
    await read_records(reader, 20)
    stop_after.set()
    count = await producing

    records = await read_records(await lab.reader(topic), count)
    assert [record.value for record in records] == [f"{n}".encode() for n in range(count)]
    assert [record.offset for record in records] == list(range(count))
    assert await reader.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): count}


@both_endings
async def test_everything_acknowledged_is_kept(
    own_broker: Broker, lab: KafkaClients, end: Callable[[Broker], object]
) -> None:
    topic, group = await lab.topic(partitions=3, configs={"retention.ms": "7200000"}), unique("group")
    partition = TopicPartition(topic, 1)
    deleted = await lab.topic()
    await (await lab.admin()).delete_topics([deleted])
    await lab.put(topic, [b"1", b"2", b"3"], partition=1)
    committer = await lab.consumer(group_id=group)
    committer.assign([partition])
    await committer.commit({partition: 2})
    connection = await lab.connection()
    producer_id, epoch = await wire.producer_id(connection)
    # A young batch: a broker may forget producers whose last record is a day old.
    now = int(time.time() * 1000)
    once = wire.batch([b"once"], producer_id=producer_id, epoch=epoch, sequence=0, timestamp=now)
    assert await wire.produce(connection, topic, once) == (wire.NONE, 0)

    await _restart(own_broker, end)

    async with open_clients(own_broker.address) as after:
        reader = await after.reader(topic, range(3), group_id=group)
        assert await reader.committed(partition) == 2
        assert [record.value for record in await read_records(await after.reader(topic, [1]), 3)] == [b"1", b"2", b"3"]
        assert deleted not in await (await after.admin()).list_topics()
        assert await after.topic_config(topic, "retention.ms") == "7200000"
        # A retry that arrives after the restart is still recognised.
        again = await after.connection()
        assert await wire.produce(again, topic, once) == (wire.NONE, 0)
        assert await wire.list_offset(again, topic, wire.LATEST) == (wire.NONE, 1)
        new_id, _ = await wire.producer_id(again)
        assert new_id != producer_id


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
async def test_a_stable_group_goes_on_without_a_rebalance(own_broker: Broker, lab: KafkaClients, static: bool) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    members, journals = [], [Journal(), Journal()]
    for name, journal in zip(("one", "two"), journals, strict=True):
        member = await lab.consumer(
            group_id=group, group_instance_id=name if static else None, session_timeout_ms=30_000
        )
        member.subscribe([topic], listener=journal)
        members.append(member)
    await until(lambda: all(len(m.assignment()) == 1 for m in members), "each member has a partition")
    for member, journal in zip(members, journals, strict=True):
        await journal.until_told(member)
    held, told = [m.assignment() for m in members], [len(j.assigned) for j in journals]

    await _restart(own_broker, Broker.kill)

    async def may_commit(member: AIOKafkaConsumer) -> bool:
        try:
            await member.commit(dict.fromkeys(member.assignment(), 7))
        except KafkaError:
            return False
        return True

    for member in members:
        await until(lambda: may_commit(member), "a member commits")  # noqa: B023
    await asyncio.sleep(1.0)  # five heartbeats
    assert [m.assignment() for m in members] == held
    assert [len(j.assigned) for j in journals] == told
    committed = await (await lab.admin()).list_consumer_group_offsets(group)
    assert {p.partition: o.offset for p, o in committed.items()} == {0: 7, 1: 7}


async def test_a_group_finds_together_again(own_broker: Broker, lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    members = [await lab.consumer(topic, group_id=group, session_timeout_ms=3000) for _ in range(2)]
    await until(lambda: all(len(m.assignment()) == 1 for m in members), "each member has a partition")
    producer = await lab.producer(request_timeout_ms=60_000)

    await _restart(own_broker, Broker.kill)

    # Until both members have joined again, one of them may hold both partitions.
    seen: dict[int, set[int]] = {0: set(), 1: set()}

    async def listen(number: int) -> None:
        async for record in members[number]:
            seen[number].add(record.partition)

    listeners = [asyncio.create_task(listen(number)) for number in range(2)]

    async def both_are_served() -> bool:
        for partition in range(2):
            await producer.send_and_wait(topic, b"after", partition=partition)
        return all(seen.values()) and seen[0] | seen[1] == {0, 1}

    try:
        await until(both_are_served, "each member reads, and every partition is read")
    finally:
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
