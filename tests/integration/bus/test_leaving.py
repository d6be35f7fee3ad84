"""Test that a member of a group commits its work if it stops during a rebalance."""

import asyncio
import random

import pytest

from schemas.topics import Topic
from services.bus import BusSettings, GroupReader, Producer
from services.bus.groups.membership import GroupMembership
from tests.integration.bus.lab import RecordCollector, chunk, request_in, running_readers


@pytest.mark.parametrize("moment", ["before it joins again", "when it gets an assignment"])
async def test_who_stops_during_a_rebalance_commits_its_work(
    moment: str, settings: BusSettings, producer: Producer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"group-{random.getrandbits(64):x}"
    ids = [request_in(partition) for partition in range(4)]
    for request_id in ids:
        await producer.send(topic, chunk(request_id, 0))
    got, other = RecordCollector(), RecordCollector()

    async def settle(_: object) -> None: ...

    def reader(handler: RecordCollector) -> GroupReader:
        return GroupReader(settings, topics=[topic], group=group, handler=handler, commit="manual", settle=settle)

    first = reader(got)
    running = asyncio.create_task(first.run())
    await got.until_count(4)
    own, stopped = first._session._member, asyncio.Event()
    revoked, assigned = GroupMembership.on_partitions_revoked, GroupMembership.on_partitions_assigned

    def stop(member: GroupMembership) -> None:
        if member is own and not stopped.is_set():
            stopped.set()
            for partition in range(4):
                first.done(topic.name, partition, 0)
            running.cancel()

    async def revoke(member: GroupMembership, partitions: object) -> None:
        await revoked(member, partitions)
        if moment == "before it joins again":
            stop(member)

    def assign(member: GroupMembership, partitions: object) -> None:
        if moment == "when it gets an assignment":
            stop(member)
        assigned(member, partitions)

    monkeypatch.setattr(GroupMembership, "on_partitions_revoked", revoke)
    monkeypatch.setattr(GroupMembership, "on_partitions_assigned", assign)
    async with running_readers(reader(other)):
        await stopped.wait()
        await asyncio.wait({running})
        for request_id in ids:
            await producer.send(topic, chunk(request_id, 1))
        await other.until_count(4)
        assert sorted(other.offsets) == [(partition, 1) for partition in range(4)]
