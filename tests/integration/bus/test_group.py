import asyncio
import dataclasses
import gc
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, NotLeaderForPartitionError
from aiokafka.protocol.fetch import FetchResponse_v7

from schemas.topics import Topic
from services.bus import (
    Assignment,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Partition,
    Producer,
    Received,
    TopicPartitions,
    UnreadableRecord,
)
from services.bus.groups.assignor import StickyNumberAssignor
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetch_connection import FetchConnection
from services.bus.read.fetch_wire import FetchAsk
from services.runtime.errors import UserError
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import LIMIT_S, RecordCollector, chunk, closed, request_in, running_readers
from tests.support.waiting import until

NOTHING: TopicPartitions = frozenset()


@pytest.fixture
def group() -> str:
    return f"group-{random.getrandbits(64):x}"


def everything(topic: Topic) -> TopicPartitions:
    return frozenset((topic.name, partition) for partition in range(4))


async def fill(producer: Producer, topic: Topic, each: int) -> list[tuple[int, int]]:
    futures = [await producer.post(topic, chunk(request_in(p), 0)) for p in range(4) for _ in range(each)]
    return sorted([await future for future in futures])


async def test_one_member_reads_everything_and_goes_on_where_it_was(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    first = await fill(producer, topic, 5)
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(20)
    assert sorted(got.offsets) == first
    second = await fill(producer, topic, 3)
    again = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=again)):
        await again.until_count(12)
    assert sorted(again.offsets) == second


async def test_two_members_share_and_the_one_that_stays_takes_over(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    held: dict[str, TopicPartitions] = {"a": frozenset(), "b": frozenset()}
    lost: list[TopicPartitions] = []
    gained: list[TopicPartitions] = []
    got = {"a": RecordCollector(), "b": RecordCollector()}

    def member(name: str) -> GroupReader:
        def assigned(assignment: Assignment) -> None:
            held[name] = assignment.held
            if name == "a":
                lost.append(assignment.lost)
                gained.append(assignment.gained)

        return GroupReader(settings, topics=[topic], group=group, handler=got[name], on_assigned=assigned)

    async with running_readers(member("a")):
        await until(lambda: len(held["a"]) == 4)
        await fill(producer, topic, 2)
        await got["a"].until_count(8)
        async with running_readers(member("b")):
            await until(lambda: len(held["a"]) == len(held["b"]) == 2)
            assert held["a"] | held["b"] == {(topic.name, partition) for partition in range(4)}
            await fill(producer, topic, 2)
            await got["b"].until_count(4)
            await got["a"].until_count(12)
        await until(lambda: len(held["a"]) == 4)
        await fill(producer, topic, 1)
        await got["a"].until_count(16)
    assert {(topic.name, partition) for partition, _ in got["b"].offsets} == held["b"]
    assert lost == [frozenset(), held["b"], frozenset()]
    assert gained == [held["a"], frozenset(), held["b"]]
    both = got["a"].offsets + got["b"].offsets
    assert sorted(both) == [(partition, offset) for partition in range(4) for offset in range(5)]


async def test_members_get_the_same_partitions_of_all_topics(
    settings: BusSettings, new_topic: NewTopic, group: str
) -> None:
    topics = [await new_topic(), await new_topic()]
    held: list[TopicPartitions] = [frozenset()] * 3

    def member(number: int) -> GroupReader:
        def assigned(assignment: Assignment) -> None:
            held[number] = assignment.held

        return GroupReader(settings, topics=topics, group=group, handler=RecordCollector(), on_assigned=assigned)

    async with running_readers(*(member(number) for number in range(3))):
        await until(lambda: sum(map(len, held)) == 8 and all(held))
    for partitions in held:
        first, second = ({p for name, p in partitions if name == topic.name} for topic in topics)
        assert first == second


async def test_metadata_that_lacks_a_topic_for_a_moment_takes_nothing_away(
    settings: BusSettings, new_topic: NewTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [await new_topic(), await new_topic()]
    assign, held = StickyNumberAssignor.assign, [NOTHING, NOTHING]

    class Lacking:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def partitions_for_topic(self, topic: str) -> Any:
            return None if topic == topics[1].name else self._cluster.partitions_for_topic(topic)

    monkeypatch.setattr(
        StickyNumberAssignor, "assign", lambda self, cluster, given: assign(self, Lacking(cluster), given)
    )

    def member(number: int) -> GroupReader:
        def assigned(assignment: Assignment) -> None:
            held[number] = assignment.held

        return GroupReader(settings, topics=topics, group=group, handler=RecordCollector(), on_assigned=assigned)

    async with running_readers(member(0)):
        await until(lambda: len(held[0]) > 0)
        assert held[0] == everything(topics[0]) | everything(topics[1])
        async with running_readers(member(1)):
            await until(lambda: len(held[1]) == 4 and len(held[0]) == 4)


async def test_manual_commits_follow_the_work(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    request_id = request_in(2)
    for seq in range(6):
        await producer.send(topic, chunk(request_id, seq))
    got = RecordCollector()
    reader = GroupReader(settings, topics=[topic], group=group, handler=got, commit="manual")
    async with running_readers(reader):
        await got.until_count(6)
        for offset in (0, 1, 3, 5):
            reader.done(topic.name, 2, offset)
    again = RecordCollector()
    reader = GroupReader(settings, topics=[topic], group=group, handler=again, commit="manual")
    async with running_readers(reader):
        await again.until_count(4)
        assert again.offsets == [(2, offset) for offset in (2, 3, 4, 5)]
        for offset in (5, 4, 3, 2):
            reader.done(topic.name, 2, offset)
    last = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=last, commit="manual")):
        await producer.send(topic, closed(request_id))
        await last.until_count(1)
    assert last.offsets == [(2, 6)]


async def test_work_that_is_done_within_the_handler_is_committed(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 1)
    got = RecordCollector()

    def handler(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            reader.done(record.topic, record.partition, record.offset)
        got(records)

    reader = GroupReader(settings, topics=[topic], group=group, handler=handler, commit="manual")
    async with running_readers(reader):
        await got.until_count(4)
    await fill(producer, topic, 1)
    again = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=again)):
        await again.until_count(4)
    assert sorted(again.offsets) == [(partition, 1) for partition in range(4)]


async def test_a_group_that_commits_never_begins_again(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    written = await fill(producer, topic, 1)
    for _ in range(2):
        got = RecordCollector()
        async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got, commit="never")):
            await got.until_count(4)
        assert sorted(got.offsets) == written


async def test_rewinding_reads_the_recent_past_whatever_is_committed(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 2)
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(8)
    told: list[str] = []
    again = RecordCollector()

    def handler(records: Sequence[Received | UnreadableRecord]) -> None:
        told.append("records")
        again(records)

    reader = GroupReader(
        settings,
        topics=[topic],
        group=group,
        handler=handler,
        commit="never",
        rewind_ms=3_600_000,
        on_assigned=lambda _: told.append("assigned"),
    )
    async with running_readers(reader):
        await until(lambda: reader.joined)
        assert await reader.read_to_end(everything(topic))
        assert len(again.records) == 8
    assert sorted(again.offsets) == [(partition, offset) for partition in range(4) for offset in range(2)]
    assert told[:2] == ["assigned", "records"]


async def test_a_refused_membership_is_told_once(
    settings: BusSettings, topic: Topic, group: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        await asyncio.sleep(0.05)
        raise GroupAuthorizationFailedError(group)

    monkeypatch.setattr(AIOKafkaClient, "coordinator_lookup", refuse)
    with pytest.raises(UserError, match="does not let this user read"):
        await GroupReader(settings, topics=[topic], group=group, handler=RecordCollector()).run()
    gc.collect()
    assert not [record.message for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("trouble", ["no connection", "another leader"])
async def test_rewinding_starts_at_its_place_while_a_broker_is_away(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would count from now. After a long outage it would then read nothing of what is open."""
    await fill(producer, topic, 1)
    await asyncio.sleep(1)
    fetch, troubles = FetchConnection.fetch, [trouble]

    async def fail_once(self: FetchConnection, ask: FetchAsk) -> bytes | None:
        if not troubles:
            return await fetch(self, ask)
        troubles.clear()
        if trouble == "no connection":
            raise KafkaConnectionError
        parts = [(number, NotLeaderForPartitionError.errno, -1, -1, -1, [], b"") for _, number in ask.offsets]
        return FetchResponse_v7(0, 0, 0, [(topic.name, parts)]).encode()  # type: ignore[no-any-return]

    monkeypatch.setattr(FetchConnection, "fetch", fail_once)
    got = RecordCollector()
    reader = GroupReader(settings, topics=[topic], group=group, handler=got, commit="never", rewind_ms=500)
    async with running_readers(reader):
        await until(lambda: reader.joined)
        assert await reader.read_to_end(everything(topic))
    assert sorted(got.offsets) == [(partition, 0) for partition in range(4)]


async def test_who_leads_its_group_still_finds_where_to_begin(
    settings: BusSettings, producer: Producer, topic: Topic, new_topic: NewTopic, group: str
) -> None:
    """A member that has led a rebalance takes partitions over, although no member subscribes to the progress topic."""
    await fill(producer, topic, 1)
    progress, held = await new_topic(), [NOTHING]
    got = RecordCollector()
    reader = GroupReader(
        settings, topics=[topic], group=group, handler=got, commit="never", rewind_ms=60_000, progress_topic=progress,
        on_assigned=lambda assignment: held.append(assignment.held),
    )  # fmt: skip
    async with running_readers(reader):
        await got.until_count(4)
        async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=RecordCollector())):
            await until(lambda: len(held[-1]) == 2)
            assert reader._session is not None
            await reader._session.cluster.refresh()  # as after five minutes, or after a broken connection
        await until(lambda: len(held[-1]) == 4)
        await got.until_count(6)


async def test_reading_to_the_end_waits_for_the_end_at_the_call_only(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    room, got = InFlightLimit(1), RecordCollector()

    def keep(records: Sequence[Received | UnreadableRecord]) -> None:
        room.acquire(len(records))
        got(records)

    reader = GroupReader(
        settings, topics=[topic], group=group, handler=keep, in_flight_limit=room, commit="never", rewind_ms=0
    )
    async with running_readers(reader):
        await until(lambda: reader.joined)
        asked_us = reader.clock()
        assert await reader.read_to_end(everything(topic)), "an empty log is read to its end"
        assert all(reader.log_clock(partition).since_us >= asked_us for partition in everything(topic))
        await fill(producer, topic, 2)
        to_end = asyncio.create_task(reader.read_to_end(everything(topic)))
        await got.until_count(1)  # there is no room for another
        await asyncio.sleep(0.3)
        assert not to_end.done()
        assert await reader.lag() == 8 - len(got.records)
        while len(got.records) < 8:
            assert not to_end.done()
            held = len(got.records)
            room.release()
            await got.until_count(held + 1)
        assert await to_end
        assert not await reader.read_to_end(frozenset({("railbus.nowhere", 0)}) | everything(topic))


async def test_a_wait_for_an_end_that_the_log_has_lost_is_over(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 2)
    reader = GroupReader(settings, topics=[topic], group=group, handler=RecordCollector())
    async with running_readers(reader):
        await until(lambda: reader.joined)
        assert reader._session is not None
        cluster = reader._session.cluster
        end_offsets = cluster.end_offsets

        async def before_the_loss(partitions: TopicPartitions) -> dict[Partition, int]:
            return {partition: end + 1 for partition, end in (await end_offsets(partitions)).items()}

        cluster.end_offsets = before_the_loss  # type: ignore[method-assign, assignment]
        to_end = asyncio.create_task(reader.read_to_end(everything(topic)))
        await until(lambda: bool(reader._partitions._goals))
        cluster.end_offsets = end_offsets  # type: ignore[method-assign]
        await until(lambda: reader._partitions.positions == dict.fromkeys(everything(topic), 2))
        assert not to_end.done()
        assert await reader.lag() == 0
        async with asyncio.timeout(10):
            assert await to_end


async def test_a_partition_without_a_leader_delays_no_other(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(producer, topic, 2)
    leader, leaderless, held = Cluster.leader, {(topic.name, 3)}, [NOTHING, NOTHING]
    monkeypatch.setattr(
        Cluster, "leader", lambda self, partition: None if partition in leaderless else leader(self, partition)
    )
    got, others = RecordCollector(), RecordCollector()
    first, second = (
        GroupReader(
            settings, topics=[topic], group=group, handler=handler, commit="never", rewind_ms=60_000,
            on_assigned=lambda assignment, at=at: held.__setitem__(at, assignment.held),  # type: ignore[misc]
        )
        for at, handler in enumerate((got, others))
    )  # fmt: skip
    async with running_readers(first):
        async with asyncio.timeout(10):
            await got.until_count(6)
        lag = asyncio.create_task(first.lag())
        async with running_readers(second):
            await until(lambda: (topic.name, 3) in held[1])
            async with asyncio.timeout(10):
                await lag
                await others.until_count(2)
            leaderless.clear()
            await others.until_count(4)
    assert {partition for partition, _ in got.offsets} == {0, 1, 2}


async def test_partitions_begin_although_one_loses_its_leader_meanwhile(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(producer, topic, 2)
    leader, end_offsets, leaderless = Cluster.leader, Cluster.end_offsets, set[Partition]()
    monkeypatch.setattr(
        Cluster, "leader", lambda self, partition: None if partition in leaderless else leader(self, partition)
    )

    async def fail_once(self: Cluster, partitions: TopicPartitions) -> dict[Partition, int]:
        if len(partitions) == 4:
            leaderless.add((topic.name, 3))
        return await end_offsets(self, partitions)

    monkeypatch.setattr(Cluster, "end_offsets", fail_once)
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        async with asyncio.timeout(10):
            await got.until_count(6)
        leaderless.clear()
        await got.until_count(8)


async def test_a_kept_partition_is_read_on_while_the_group_is_joined_again(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    """Members come and go while records flow: what the first keeps all the time comes once, in order, without a gap."""
    held: list[TopicPartitions] = []
    got = RecordCollector()
    reader = GroupReader(
        settings, topics=[topic], group=group, handler=got, commit="never", rewind_ms=60_000,
        on_assigned=lambda assignment: held.append(assignment.held),
    )  # fmt: skip
    ids = [request_in(partition) for partition in range(4)]
    stop = asyncio.Event()

    async def write() -> int:
        seq = 0
        while not stop.is_set():
            for request_id in ids:
                await producer.post(topic, chunk(request_id, seq))
            seq += 1
            await asyncio.sleep(0.01)
        return seq

    async with running_readers(reader):
        await until(lambda: bool(held))
        writing = asyncio.create_task(write())
        for _ in range(2):
            async with running_readers(
                GroupReader(settings, topics=[topic], group=group, handler=RecordCollector(), rewind_ms=60_000)
            ):
                count = len(held)
                await until(lambda count=count: len(held[-1]) == 2 or len(held) > count + 3)
            await until(lambda: len(held[-1]) == 4)
        stop.set()
        last = await writing
        kept = frozenset.intersection(*held)
        for _, partition in kept:
            await got.until(lambda partition=partition: sum(p == partition for p, _ in got.offsets) >= last)
            assert [offset for p, offset in got.offsets if p == partition] == list(range(last))
    assert kept


async def test_without_a_handler_the_group_only_deals_partitions(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 1)
    held: list[Assignment] = []
    reader = GroupReader(settings, topics=[topic], group=group, handler=None, on_assigned=held.append)
    async with running_readers(reader):
        await until(lambda: bool(held))
        await asyncio.sleep(0.2)
    assert held == [Assignment(everything(topic), gained=everything(topic), lost=frozenset())]
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(4)


async def test_a_room_holds_a_worker_back(settings: BusSettings, producer: Producer, topic: Topic, group: str) -> None:
    await fill(producer, topic, 10)
    room, got = InFlightLimit(3), RecordCollector()

    def keep(records: Sequence[Received | UnreadableRecord]) -> None:
        room.acquire(len(records))
        got(records)

    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=keep, in_flight_limit=room)):
        await got.until_count(3)
        await asyncio.sleep(0.2)
        assert len(got.records) == 3
        while len(got.records) < 40:
            held = len(got.records)
            room.release()
            await got.until_count(held + 1)
    assert max(got.calls) <= 3


@pytest.mark.parametrize("where", ["handler", "on_assigned"])
async def test_an_error_in_a_callback_ends_the_reader(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, where: str
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    reader = GroupReader(
        settings,
        topics=[topic],
        group=group,
        handler=fail if where == "handler" else RecordCollector(),
        on_assigned=fail if where == "on_assigned" else None,
    )
    run = asyncio.create_task(reader.run())
    await producer.send(topic, closed(request_in(0)))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run, LIMIT_S)


async def test_a_static_member_keeps_its_partitions_over_a_restart(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    other_held: list[Assignment] = []
    held: list[Assignment] = []

    def static(got: RecordCollector) -> GroupReader:
        return GroupReader(
            settings, topics=[topic], group=group, handler=got, instance_id="one", on_assigned=held.append
        )

    async with running_readers(
        GroupReader(
            settings,
            topics=[topic],
            group=group,
            handler=RecordCollector(),
            instance_id="two",
            on_assigned=other_held.append,
        )
    ):
        async with running_readers(static(RecordCollector())):
            await until(lambda: bool(held and other_held) and len(held[-1].held) == len(other_held[-1].held) == 2)
        before, mine = len(other_held), held[-1].held
        held.clear()
        async with running_readers(static(RecordCollector())):
            await until(lambda: bool(held))
            assert held[-1].held == mine
        assert len(other_held) == before, "the other member was not disturbed"


async def test_a_member_paused_beyond_its_session_knows_it_may_have_lost_all(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    got, settings = RecordCollector(), dataclasses.replace(settings, session_timeout_ms=6_000)
    reader = GroupReader(settings, topics=[topic], group=group, handler=got, commit="manual")
    assert not reader.in_session
    async with running_readers(reader):
        await until(lambda: reader.in_session)
        time.sleep(settings.session_timeout_ms / 1_000 + 0.1)  # noqa: ASYNC251 - as SIGSTOP does
        assert reader.joined
        assert not reader.in_session
        await until(lambda: reader.in_session)
