"""Test that no record is read twice if a member finishes its work before its partitions move to another member.

Each move takes two rebalances.
"""

import asyncio
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from schemas.topics import STREAMS, Topic
from services.bus import BusSettings, GroupReader, Producer, TopicPartitions, ensure_topics
from tests.integration.bus.lab import RecordCollector, chunk, request_in, running_readers
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.waiting import until

PARTITIONS = 4


class Member:
    """A group member that marks its records as done at the last moment before partitions move to another member."""

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
    """A group member that marks each record as done at once.

    Before partitions move to another member, it waits until the test sets `may_settle`.
    """

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
    """Yield a function that writes a given number of records to each partition."""
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


class WaitingGroup:
    """A group of four members in a rebalance that cannot end, because one of them waits in `_settle`.

    The first two members share all partitions before the rebalance. During the rebalance, one of these two waits in
    `_settle`, and the other continues to read. The member that joins last is the newcomer, which a test may stop.
    """

    def __init__(self, settings, topic, admin):
        self.name, self.log, self._admin = new_group(), [], admin
        self.members = [QuickMember(settings, topic, self.name, self.log) for _ in range(4)]

    @asynccontextmanager
    async def running(self):
        """Run the members within the `async with` block. When the block begins, a rebalance is under way.

        Yield the member that continues to read, and a function that stops the member that joined last.
        """
        first, second, third, newcomer = self.members
        first.may_settle.set()
        async with running_readers(first.reader), running_readers(second.reader), AsyncExitStack() as last:
            await until(lambda: shared_by(first, second))
            first.may_settle.clear()
            first.settling = False
            async with running_readers(third.reader):
                await until(lambda: first.settling or second.settling, "one gives a partition to the third")
                await last.enter_async_context(running_readers(newcomer.reader))
                await until(self.waits)
                await asyncio.sleep(0.2)  # all but one have joined now
                working = second if first.settling else first
                working.lost = frozenset()
                yield working, last.aclose

    async def described(self):
        (response,) = await self._admin.describe_consumer_groups([self.name])
        return response.groups[0]

    async def waits(self) -> bool:
        return (await self.described())[2] == "PreparingRebalance"

    async def committed(self) -> dict[int, int]:
        found = await self._admin.list_consumer_group_offsets(self.name)
        return {at.partition: committed.offset for at, committed in found.items()}

    def release(self) -> None:
        for member in self.members:
            member.may_settle.set()


@pytest.fixture
async def group(settings, topic, lab, monkeypatch) -> WaitingGroup:
    """Return a group whose members may spend up to 6 s in `_settle`, instead of the usual 3 s."""
    monkeypatch.setattr("services.bus.groups.group_reader.LAST_COMMIT_S", 6.0)
    slower = replace(settings, session_timeout_ms=24_000)  # a quarter of it is the other limit
    return WaitingGroup(slower, topic, await lab.admin())


async def test_work_done_while_the_group_waits_is_committed_and_not_read_again(group, fill) -> None:
    """Work that a member does while it waits for the end of a rebalance is committed, and no member repeats this work.

    The broker answers a JoinGroup request only when all members have joined. Until then, it answers nothing else on the
    connection of this request. So the member commits on a second connection.
    """
    async with group.running() as (working, _):
        await fill(3)
        kept = {number for _, number in working.held}

        async def kept_are_committed() -> bool:
            return kept <= {number for number, at in (await group.committed()).items() if at == 3}

        await until(kept_are_committed)
        assert await group.waits()
        group.release()
        await until(lambda: shared_by(*group.members))
        await until(lambda: len(set(group.log)) == 12)
        await until(lambda: working.lost)
    assert sorted(group.log) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(3)]
    assert len(working.lost) == 1, "what another got; it joined again as the member that it was"
    assert await group.committed() == dict.fromkeys(range(PARTITIONS), 3)


async def test_whoever_stops_while_the_group_waits_is_no_member_any_more(group) -> None:
    """A member that stops during a rebalance leaves the group at once.

    Otherwise the group would wait for this member, or give it partitions, until its session times out.
    """
    async with group.running() as (_, stop_newcomer):
        assert len((await group.described())[5]) == 4
        await stop_newcomer()
        assert len((await group.described())[5]) == 3
        assert await group.waits()
        group.release()
        await until(lambda: shared_by(*group.members[:3]))
