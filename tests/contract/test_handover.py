"""Partitions move between members that hand over in two rebalances, and nothing is read twice: on both brokers."""

import asyncio
import uuid

import pytest

from schemas.topics import STREAMS, Topic
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


class QuickMember(Member):
    """A worker that is done with all it was handed at once, and settles when the test lets it."""

    def __init__(self, *args):
        self.may_settle, self.settling, self.lost = asyncio.Event(), False, frozenset()
        super().__init__(*args)

    def _assigned(self, assignment):
        super()._assigned(assignment)
        self.lost |= assignment.lost

    def _take(self, records):
        super()._take(records)
        for record in records:
            self.reader.done(record.topic, record.partition, record.offset)

    async def _settle(self, partitions: TopicPartitions) -> None:
        self.settling = True
        await self.may_settle.wait()


@pytest.fixture
async def settings(broker: Broker) -> BusSettings:
    return BusSettings(bootstrap=broker.address, session_timeout_ms=12_000, partitions=PARTITIONS)


@pytest.fixture
async def topic(settings: BusSettings) -> Topic:
    topic = copy_of(STREAMS)
    await ensure_topics(settings, [topic])
    return topic


@pytest.fixture
async def fill(settings: BusSettings, topic: Topic):
    """Writes this many records to each partition."""
    producer = Producer(settings, role=any_role(), name="test")
    await producer.start()

    async def fill(count: int) -> None:
        for partition in range(PARTITIONS):
            request_id = request_in(partition, PARTITIONS)
            for seq in range(count):
                await producer.send(topic, chunk(request_id, seq))

    yield fill
    await producer.stop()


def new_group() -> str:
    return f"workers-{uuid.uuid4().hex[:8]}"


def shared_by(*members: Member) -> bool:
    return sum(len(each.held) for each in members) == PARTITIONS and all(each.held for each in members)


async def test_a_moved_partition_is_read_only_after_its_owner_has_committed(settings, topic, fill) -> None:
    group, log = new_group(), []
    first, second, third = (Member(settings, topic, group, log) for _ in range(3))
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
    assert sorted(log) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(5)]


async def test_what_is_done_while_the_group_waits_for_a_member_is_not_read_again(settings, topic, fill, lab) -> None:
    """A commit that is sent while a join waits for its answer is refused, because its generation is over by then."""
    group, log = new_group(), []
    members = first, second, third, fourth = [QuickMember(settings, topic, group, log) for _ in range(4)]
    admin = await lab.admin()

    async def group_waits() -> bool:
        (response,) = await admin.describe_consumer_groups([group])
        return response.groups[0][2] == "PreparingRebalance"

    async def committed() -> dict[int, int]:
        return {at.partition: found.offset for at, found in (await admin.list_consumer_group_offsets(group)).items()}

    first.may_settle.set()
    async with running_readers(first.reader), running_readers(second.reader):
        await until(lambda: shared_by(first, second))
        first.may_settle.clear()
        first.settling = False
        async with running_readers(third.reader):
            await until(lambda: first.settling or second.settling, "one gives a partition to the third")
            working = second if first.settling else first
            async with running_readers(fourth.reader):
                await until(group_waits)
                await asyncio.sleep(0.2)  # the working member's join waits, too
                working.lost = frozenset()
                await fill(3)
                await until(lambda: {(each, 2) for _, each in working.held} <= set(log), "what it kept is read")
                await asyncio.sleep(0.3)  # a commit would be sent now
                for member in members:
                    member.may_settle.set()
                await until(lambda: shared_by(*members))
                await until(lambda: len(set(log)) == 12)

                async def all_committed() -> bool:
                    return await committed() == dict.fromkeys(range(PARTITIONS), 3)

                await until(all_committed, "no further record is needed for that")
    assert sorted(log) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(3)]
    assert len(working.lost) == 1, "what another got; it joined again as the member that it was"
