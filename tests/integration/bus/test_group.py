import asyncio
import dataclasses
import gc
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupAuthorizationFailedError

from schemas.topics import Topic
from services.bus import (
    Assignment,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Producer,
    Received,
    TopicPartitions,
    UnreadableRecord,
)
from services.bus.groups.assignor import StickyNumberAssignor
from services.runtime.errors import UserError
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import (
    LIMIT_S,
    NOTHING,
    RecordCollector,
    all_partitions,
    chunk,
    closed,
    fill_all,
    request_in,
    running_readers,
)
from tests.support.waiting import until


async def test_one_member_reads_everything_and_goes_on_where_it_was(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    first = await fill_all(producer, topic, 5)
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(20)
    assert sorted(got.offsets) == first
    second = await fill_all(producer, topic, 3)
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
        await fill_all(producer, topic, 2)
        await got["a"].until_count(8)
        async with running_readers(member("b")):
            await until(lambda: len(held["a"]) == len(held["b"]) == 2)
            assert held["a"] | held["b"] == {(topic.name, partition) for partition in range(4)}
            await fill_all(producer, topic, 2)
            await got["b"].until_count(4)
            await got["a"].until_count(12)
        await until(lambda: len(held["a"]) == 4)
        await fill_all(producer, topic, 1)
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
        assert held[0] == all_partitions(topics[0]) | all_partitions(topics[1])
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
    await fill_all(producer, topic, 1)
    got = RecordCollector()

    def handler(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            reader.done(record.topic, record.partition, record.offset)
        got(records)

    reader = GroupReader(settings, topics=[topic], group=group, handler=handler, commit="manual")
    async with running_readers(reader):
        await got.until_count(4)
    await fill_all(producer, topic, 1)
    again = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=again)):
        await again.until_count(4)
    assert sorted(again.offsets) == [(partition, 1) for partition in range(4)]


async def test_a_group_that_commits_never_begins_again(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    written = await fill_all(producer, topic, 1)
    for _ in range(2):
        got = RecordCollector()
        async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got, commit="never")):
            await got.until_count(4)
        assert sorted(got.offsets) == written


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


async def test_a_kept_partition_is_read_on_while_the_group_is_joined_again(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    """While other members come and go, a member reads every record of the partitions it keeps, once and in order."""
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
    await fill_all(producer, topic, 1)
    held: list[Assignment] = []
    reader = GroupReader(settings, topics=[topic], group=group, handler=None, on_assigned=held.append)
    async with running_readers(reader):
        await until(lambda: bool(held))
        await asyncio.sleep(0.2)
    assert held == [Assignment(all_partitions(topic), gained=all_partitions(topic), lost=frozenset())]
    got = RecordCollector()
    async with running_readers(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(4)


async def test_a_room_holds_a_worker_back(settings: BusSettings, producer: Producer, topic: Topic, group: str) -> None:
    await fill_all(producer, topic, 10)
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
