import asyncio
import random
from collections.abc import Sequence

import pytest

from schemas.topics import Topic
from services.bus import BusSettings, GroupReader, Producer, Received, Room, TopicPartitions, Unread
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import LIMIT_S, Got, chunk, closed, eventually, request_in, running


@pytest.fixture
def group() -> str:
    return f"group-{random.getrandbits(64):x}"


async def fill(producer: Producer, topic: Topic, each: int) -> list[tuple[int, int]]:
    futures = [await producer.post(topic, chunk(request_in(p), 0)) for p in range(4) for _ in range(each)]
    return sorted([await future for future in futures])


async def test_one_member_reads_everything_and_goes_on_where_it_was(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    first = await fill(producer, topic, 5)
    got = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(20)
    assert sorted(got.offsets) == first
    second = await fill(producer, topic, 3)
    again = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=again)):
        await again.until_count(12)
    assert sorted(again.offsets) == second


async def test_two_members_share_and_the_one_that_stays_takes_over(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    held: dict[str, TopicPartitions] = {"a": frozenset(), "b": frozenset()}
    taken: list[TopicPartitions] = []
    got = {"a": Got(), "b": Got()}

    def member(name: str) -> GroupReader:
        def assigned(partitions: TopicPartitions) -> None:
            held[name] = partitions

        def revoked(partitions: TopicPartitions) -> None:
            taken.append(partitions)

        return GroupReader(
            settings, topics=[topic], group=group, handler=got[name], on_assigned=assigned, on_revoked=revoked
        )

    async with running(member("a")):
        await eventually(lambda: len(held["a"]) == 4)
        await fill(producer, topic, 2)
        await got["a"].until_count(8)
        async with running(member("b")):
            await eventually(lambda: len(held["a"]) == len(held["b"]) == 2)
            assert held["a"] | held["b"] == {(topic.name, partition) for partition in range(4)}
            assert taken[0] == {(topic.name, partition) for partition in range(4)}
            await fill(producer, topic, 2)
            await got["b"].until_count(4)
            await got["a"].until_count(12)
        await eventually(lambda: len(held["a"]) == 4)
        await fill(producer, topic, 1)
        await got["a"].until_count(16)
    assert {(topic.name, partition) for partition, _ in got["b"].offsets} == held["b"]
    everything = got["a"].offsets + got["b"].offsets
    assert sorted(everything) == [(partition, offset) for partition in range(4) for offset in range(5)]


async def test_members_get_the_same_partitions_of_all_topics(
    settings: BusSettings, new_topic: NewTopic, group: str
) -> None:
    topics = [await new_topic(), await new_topic()]
    held: list[TopicPartitions] = [frozenset()] * 3

    def member(number: int) -> GroupReader:
        def assigned(partitions: TopicPartitions) -> None:
            held[number] = partitions

        return GroupReader(settings, topics=topics, group=group, handler=Got(), on_assigned=assigned)

    async with running(*(member(number) for number in range(3))):
        await eventually(lambda: sum(map(len, held)) == 8 and all(held))
    for partitions in held:
        first, second = ({p for name, p in partitions if name == topic.name} for topic in topics)
        assert first == second


async def test_manual_commits_follow_the_work(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    request_id = request_in(2)
    for seq in range(6):
        await producer.send(topic, chunk(request_id, seq))
    got = Got()
    reader = GroupReader(settings, topics=[topic], group=group, handler=got, commit="manual")
    async with running(reader):
        await got.until_count(6)
        for offset in (0, 1, 3, 5):
            reader.done(topic.name, 2, offset)
    again = Got()
    reader = GroupReader(settings, topics=[topic], group=group, handler=again, commit="manual")
    async with running(reader):
        await again.until_count(4)
        assert again.offsets == [(2, offset) for offset in (2, 3, 4, 5)]
        for offset in (5, 4, 3, 2):
            reader.done(topic.name, 2, offset)
    last = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=last, commit="manual")):
        await producer.send(topic, closed(request_id))
        await last.until_count(1)
    assert last.offsets == [(2, 6)]


async def test_work_that_is_done_within_the_handler_is_committed(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 1)
    got = Got()

    def handler(records: Sequence[Received | Unread]) -> None:
        for record in records:
            reader.done(record.topic, record.partition, record.offset)
        got(records)

    reader = GroupReader(settings, topics=[topic], group=group, handler=handler, commit="manual")
    async with running(reader):
        await got.until_count(4)
    await fill(producer, topic, 1)
    again = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=again)):
        await again.until_count(4)
    assert sorted(again.offsets) == [(partition, 1) for partition in range(4)]


async def test_a_group_that_commits_never_begins_again(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    written = await fill(producer, topic, 1)
    for _ in range(2):
        got = Got()
        async with running(GroupReader(settings, topics=[topic], group=group, handler=got, commit="never")):
            await got.until_count(4)
        assert sorted(got.offsets) == written


async def test_a_new_group_may_begin_at_the_end(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 2)
    got = Got()
    held: list[TopicPartitions] = []
    reader = GroupReader(settings, topics=[topic], group=group, handler=got, start="latest", on_assigned=held.append)
    async with running(reader):
        await eventually(lambda: bool(held))
        # Where it begins is asked for after it was told; so records are sent until one comes.
        async with asyncio.timeout(LIMIT_S):
            while not got.records:
                await producer.send(topic, closed(request_in(0)))
                await asyncio.sleep(0.05)
    assert all(offset >= 2 for _, offset in got.offsets)


async def test_rewinding_reads_the_recent_past_whatever_is_committed(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 2)
    got = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(8)
    told: list[str] = []
    caught_up: set[tuple[str, int]] = set()
    again = Got()

    def handler(records: Sequence[Received | Unread]) -> None:
        told.append("records")
        again(records)

    def on_caught_up(partitions: TopicPartitions) -> None:
        told.append("caught up")
        caught_up.update(partitions)

    reader = GroupReader(
        settings,
        topics=[topic],
        group=group,
        handler=handler,
        commit="never",
        rewind_ms=3_600_000,
        on_assigned=lambda _: told.append("assigned"),
        on_caught_up=on_caught_up,
    )
    async with running(reader):
        await again.until_count(8)
        await eventually(lambda: len(caught_up) == 4)
    assert sorted(again.offsets) == [(partition, offset) for partition in range(4) for offset in range(2)]
    assert told[:2] == ["assigned", "records"]


async def test_rewinding_by_nothing_has_caught_up_at_once(settings: BusSettings, topic: Topic, group: str) -> None:
    caught_up: set[tuple[str, int]] = set()
    reader = GroupReader(
        settings, topics=[topic], group=group, handler=Got(), rewind_ms=0, on_caught_up=caught_up.update
    )
    async with running(reader):
        await eventually(lambda: len(caught_up) == 4)


async def test_without_a_handler_the_group_only_deals_partitions(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill(producer, topic, 1)
    held: list[TopicPartitions] = []
    reader = GroupReader(settings, topics=[topic], group=group, handler=None, on_assigned=held.append)
    async with running(reader):
        await eventually(lambda: bool(held))
        await asyncio.sleep(0.2)
    assert held == [frozenset((topic.name, partition) for partition in range(4))]
    got = Got()
    async with running(GroupReader(settings, topics=[topic], group=group, handler=got)):
        await got.until_count(4)


async def test_a_room_holds_a_worker_back(settings: BusSettings, producer: Producer, topic: Topic, group: str) -> None:
    await fill(producer, topic, 10)
    room, got = Room(3), Got()

    def keep(records: Sequence[Received | Unread]) -> None:
        room.take(len(records))
        got(records)

    async with running(GroupReader(settings, topics=[topic], group=group, handler=keep, room=room)):
        await got.until_count(3)
        await asyncio.sleep(0.2)
        assert len(got.records) == 3
        while len(got.records) < 40:
            held = len(got.records)
            room.give()
            await got.until_count(held + 1)
    assert max(got.calls) <= 3


@pytest.mark.parametrize("where", ["handler", "on_assigned", "on_revoked"])
async def test_an_error_in_a_callback_ends_the_reader(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, where: str
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    held: list[TopicPartitions] = []
    reader = GroupReader(
        settings,
        topics=[topic],
        group=group,
        handler=fail if where == "handler" else Got(),
        on_assigned=fail if where == "on_assigned" else held.append,
        on_revoked=fail if where == "on_revoked" else None,
    )
    run = asyncio.create_task(reader.run())
    await producer.send(topic, closed(request_in(0)))
    if where == "on_revoked":
        await eventually(lambda: bool(held))
        async with running(GroupReader(settings, topics=[topic], group=group, handler=Got())):
            await eventually(run.done)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run, LIMIT_S)


async def test_a_static_member_keeps_its_partitions_over_a_restart(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    other_held: list[TopicPartitions] = []
    held: list[TopicPartitions] = []

    def static(got: Got) -> GroupReader:
        return GroupReader(
            settings, topics=[topic], group=group, handler=got, instance_id="one", on_assigned=held.append
        )

    async with running(
        GroupReader(
            settings, topics=[topic], group=group, handler=Got(), instance_id="two", on_assigned=other_held.append
        )
    ):
        async with running(static(Got())):
            await eventually(lambda: bool(held and other_held) and len(held[-1]) == len(other_held[-1]) == 2)
        before, mine = len(other_held), held[-1]
        held.clear()
        async with running(static(Got())):
            await eventually(lambda: bool(held))
            assert held[-1] == mine
        assert len(other_held) == before, "the other member was not disturbed"
