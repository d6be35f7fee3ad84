"""A partition moves between members that hand over in two rebalances, and nothing is read twice: on both brokers."""

import asyncio
import uuid

import pytest

from schemas.topics import STREAMS
from services.bus import BusSettings, GroupReader, Producer, TopicPartitions, ensure_topics
from tests.integration.bus.lab import RecordCollector, chunk, request_in, running_readers
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.waiting import until

PARTITIONS = 4


class Member:
    """A worker that has begun all it was handed, and marks it as done only when it is asked to settle."""

    def __init__(self, settings, topic, group, log):
        self.got, self.held, self.settled, self._log = RecordCollector(), frozenset(), [], log
        self.reader = GroupReader(
            settings, topics=[topic], group=group, handler=self._take, commit="manual", settle=self._settle,
            on_assigned=self._assigned,
        )  # fmt: skip

    def _assigned(self, assignment):
        self.held = assignment.held

    def _take(self, records):
        self._log += [(record.partition, record.offset) for record in records]
        self.got(records)

    async def _settle(self, partitions: TopicPartitions) -> None:
        await asyncio.sleep(0.2)  # the broker is slow
        for record in self.got.records:
            self.reader.done(record.topic, record.partition, record.offset)
        self.settled.append(partitions)


@pytest.fixture
async def settings(broker: Broker) -> BusSettings:
    return BusSettings(bootstrap=broker.address, session_timeout_ms=12_000, partitions=PARTITIONS)


async def test_a_moved_partition_is_read_only_after_its_owner_has_committed(settings: BusSettings) -> None:
    topic, group, log = copy_of(STREAMS), f"workers-{uuid.uuid4().hex[:8]}", []
    await ensure_topics(settings, [topic])
    producer = Producer(settings, role=any_role(), name="test")
    await producer.start()

    async def fill(count: int) -> None:
        for partition in range(PARTITIONS):
            request_id = request_in(partition, PARTITIONS)
            for seq in range(count):
                await producer.send(topic, chunk(request_id, seq))

    def shared_by(*members: Member) -> bool:
        return sum(len(each.held) for each in members) == PARTITIONS and all(each.held for each in members)

    first, second, third = (Member(settings, topic, group, log) for _ in range(3))
    try:
        await fill(3)
        async with running_readers(first.reader):
            await first.got.until_count(12)
            async with running_readers(second.reader):
                await until(lambda: shared_by(first, second))
                assert first.settled == [second.held], "asked once, for what moved"
                await fill(1)
                await until(lambda: len(log) == 16)
                async with running_readers(third.reader):
                    await until(lambda: shared_by(first, second, third))
                    await fill(1)
                    await until(lambda: len(log) == 20)
    finally:
        await producer.stop()
    assert sorted(log) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(5)]
