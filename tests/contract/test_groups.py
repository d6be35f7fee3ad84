"""Test which member of a consumer group has which partitions when members join, leave and die."""

import asyncio
import itertools
import signal
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import NewPartitions
from aiokafka.errors import for_code
from aiokafka.protocol.group import HeartbeatRequest

from tests.contract.lab import PATIENCE_S, KafkaClients, read_records, unique
from tests.support.processes import ROOT
from tests.support.waiting import until

SESSION_MS = 4000
"""Session timeout of a member whose silence the broker must notice during a test. Other members have a long timeout."""

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26


class Journal(ConsumerRebalanceListener):
    """A rebalance listener that notes the partitions of each assignment of one member."""

    def __init__(self) -> None:
        self.assigned: list[list[int]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assigned.append(sorted(p.partition for p in assigned))

    async def until_told(self, member: AIOKafkaConsumer) -> None:
        """Wait until the listener has been called with the member's current assignment.

        ``member.assignment()`` changes shortly before the client calls the listener.
        """
        await until(lambda: self.assigned[-1:] == [_partitions(member)], "the listener was told what the member has")


async def _member(
    lab: KafkaClients, topic: str, group: str, journal: Journal | None = None, **settings: object
) -> AIOKafkaConsumer:
    member = await lab.consumer(group_id=group, **settings)
    member.subscribe([topic], listener=journal)
    return member


def _partitions(member: AIOKafkaConsumer) -> list[int]:
    return sorted(partition.partition for partition in member.assignment())


async def _until_shared(count: int, *members: AIOKafkaConsumer) -> None:
    """Wait until every member has a partition, and each of the `count` partitions has exactly one owner."""

    def shared() -> bool:
        owned = [_partitions(member) for member in members]
        return all(owned) and sorted(itertools.chain(*owned)) == list(range(count))

    await until(shared, f"{count} partitions shared among {len(members)} members")


async def test_a_lone_member_has_every_partition_and_reads_all(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=4)
    for partition in range(4):
        await lab.put(topic, [f"{partition}".encode()], partition=partition)

    member = await _member(lab, topic, unique("group"))

    assert sorted(r.value for r in await read_records(member, 4)) == [b"0", b"1", b"2", b"3"]
    assert _partitions(member) == [0, 1, 2, 3]


async def test_members_share_as_they_come_and_go(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=6), unique("group")
    first = await _member(lab, topic, group)
    await _until_shared(6, first)
    second = await _member(lab, topic, group)
    await _until_shared(6, first, second)
    third = await _member(lab, topic, group)
    await _until_shared(6, first, second, third)

    await second.stop()
    await _until_shared(6, first, third)
    await first.stop()
    await _until_shared(6, third)


async def test_a_member_too_many_has_nothing_until_another_leaves(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=1), unique("group")
    members = [await _member(lab, topic, group) for _ in range(2)]
    await until(lambda: sorted(len(_partitions(m)) for m in members) == [0, 1], "one owner, one without")
    owner, idle = sorted(members, key=lambda m: -len(_partitions(m)))

    await owner.stop()

    await _until_shared(1, idle)


async def test_two_groups_do_not_disturb_each_other(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    await lab.put(topic, [b"1"])
    members = [await _member(lab, topic, unique("group")) for _ in range(2)]

    for member in members:
        assert [r.value for r in await read_records(member, 1)] == [b"1"]
        assert _partitions(member) == [0, 1]


async def test_each_record_goes_to_one_member_across_rebalances(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=4), unique("group")
    producer = await lab.producer()
    seen: list[bytes] = []

    async def consume(member: AIOKafkaConsumer) -> None:
        async for record in member:
            await member.commit({TopicPartition(topic, record.partition): record.offset + 1})
            seen.append(record.value)

    first = await _member(lab, topic, group)
    await _until_shared(4, first)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(consume(first))]
        for n in range(40):
            await producer.send_and_wait(topic, f"{n}".encode(), partition=n % 4)
        await until(lambda: len(seen) == 40, "the first member reads all")
        second = await _member(lab, topic, group)
        await _until_shared(4, first, second)
        readers.append(tasks.create_task(consume(second)))
        for n in range(40, 80):
            await producer.send_and_wait(topic, f"{n}".encode(), partition=n % 4)
        await until(lambda: len(seen) >= 80, "both together read the rest")
        for reader in readers:
            reader.cancel()

    assert sorted(seen, key=int) == [f"{n}".encode() for n in range(80)]


async def test_what_a_killed_member_had_goes_to_the_others(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    survivor = await _member(lab, topic, group)
    await _until_shared(2, survivor)
    doomed = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.contract.group_member", lab.address, group, topic, str(SESSION_MS)],
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert doomed.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await doomed.stdout.readline()
        lost = int(line.removeprefix(b"assigned "))
        await until(lambda: _partitions(survivor) == [1 - lost], "both members have a partition")
        await lab.put(topic, [b"unfinished"], partition=lost)
        async with asyncio.timeout(PATIENCE_S):
            assert await doomed.stdout.readline() == b"read unfinished\n"
    finally:
        doomed.kill()
        await doomed.wait()

    await _until_shared(2, survivor)
    # It was read but not committed, so it is read again.
    assert [record.value for record in await read_records(survivor, 1)] == [b"unfinished"]


@pytest.mark.slow
async def test_what_a_paused_member_had_goes_to_the_others_until_it_wakes(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    journal = Journal()
    awake = await _member(lab, topic, group, journal)
    await _until_shared(2, awake)
    paused = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.contract.group_member", lab.address, group, topic, str(SESSION_MS)],
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await until(lambda: len(_partitions(awake)) == 1, "both members have a partition")
        await asyncio.sleep(0.5)
        began, told = time.monotonic(), len(journal.assigned)
        paused.send_signal(signal.SIGSTOP)
        await _until_shared(2, awake)
        took_s = time.monotonic() - began
        # Its session began with its last heartbeat, 0.2 s before; on a busy machine it may be two seconds.
        assert took_s > SESSION_MS / 1000 - 2
        await asyncio.sleep(3 * SESSION_MS / 1000 - took_s)
        assert journal.assigned[told:] == [[0, 1]]
        paused.send_signal(signal.SIGCONT)
        await until(lambda: len(_partitions(awake)) == 1, "the woken member has a partition again")
    finally:
        paused.kill()
        await paused.wait()


async def test_a_static_member_restarts_without_a_rebalance(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=4), unique("group")
    journals = {name: Journal() for name in ("one", "two")}
    members = {
        name: await lab.consumer(group_id=group, group_instance_id=name, session_timeout_ms=20_000) for name in journals
    }
    for name, member in members.items():
        member.subscribe([topic], listener=journals[name])
    await _until_shared(4, *members.values())
    for name, member in members.items():
        await journals[name].until_told(member)

    for name, other in (("one", "two"), ("two", "one")):  # one of them is the leader
        before, told = _partitions(members[name]), len(journals[other].assigned)
        await members[name].stop()
        members[name] = await lab.consumer(group_id=group, group_instance_id=name, session_timeout_ms=20_000)
        journals[name] = Journal()
        members[name].subscribe([topic], listener=journals[name])
        await until(lambda: _partitions(members[name]), "the restarted member has partitions")  # noqa: B023
        await journals[name].until_told(members[name])
        assert _partitions(members[name]) == before
        await asyncio.sleep(0.6)  # three heartbeats, in which a rebalance would be heard of
        assert len(journals[other].assigned) == told


async def test_a_static_member_that_stays_away_loses_its_partitions(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    staying = await _member(lab, topic, group, group_instance_id="staying")
    leaving = await _member(lab, topic, group, group_instance_id="leaving", session_timeout_ms=SESSION_MS)
    await _until_shared(2, staying, leaving)

    await leaving.stop()

    await _until_shared(2, staying)


async def test_a_rebalance_is_heard_of_in_the_heartbeat(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    journal = Journal()
    first = await _member(lab, topic, group, journal)
    await _until_shared(2, first)

    second = await _member(lab, topic, group)
    await _until_shared(2, first, second)

    assert journal.assigned[0] == [0, 1]
    await journal.until_told(first)


async def test_heartbeats_of_strangers_and_of_the_past_are_refused(lab: KafkaClients) -> None:
    topic, group = await lab.topic(), unique("group")
    member = await _member(lab, topic, group)
    await _until_shared(1, member)
    coordinator = member._coordinator
    connection = await lab.connection()

    async def heartbeat(generation: int, member_id: str) -> int:
        return (await connection.send(HeartbeatRequest(group, generation, member_id))).error_code

    assert await heartbeat(coordinator.generation, coordinator.member_id) == 0
    assert await heartbeat(coordinator.generation - 1, coordinator.member_id) == ILLEGAL_GENERATION
    assert await heartbeat(coordinator.generation, "stranger") == UNKNOWN_MEMBER_ID


async def test_a_session_timeout_outside_the_bounds_is_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    member = await lab.consumer(group_id=unique("group"), session_timeout_ms=5, heartbeat_interval_ms=1)
    member.subscribe([topic])

    with pytest.raises(for_code(INVALID_SESSION_TIMEOUT)):
        await read_records(member, 1)


async def test_new_partitions_reach_the_group(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=1), unique("group")
    member = await _member(lab, topic, group, metadata_max_age_ms=500)
    await _until_shared(1, member)

    await (await lab.admin()).create_partitions({topic: NewPartitions(3)})

    await _until_shared(3, member)
