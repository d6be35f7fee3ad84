"""Test where a group's reader begins to read, and how it reads to the end of its partitions."""

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka.errors import KafkaConnectionError, NotLeaderForPartitionError
from aiokafka.protocol.fetch import FetchResponse_v7

from schemas.topics import Topic
from services.bus import (
    BusSettings,
    GroupReader,
    InFlightLimit,
    Partition,
    Producer,
    Received,
    TopicPartitions,
    UnreadableRecord,
)
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetch_connection import FetchConnection
from services.bus.read.fetch_wire import FetchAsk
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import (
    NOTHING,
    RecordCollector,
    all_partitions,
    fill_all,
    running_readers,
)
from tests.support.waiting import until


async def test_rewinding_reads_the_recent_past_whatever_is_committed(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill_all(producer, topic, 2)
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
        assert await reader.read_to_end(all_partitions(topic))
        assert len(again.records) == 8
    assert sorted(again.offsets) == [(partition, offset) for partition in range(4) for offset in range(2)]
    assert told[:2] == ["assigned", "records"]


@pytest.mark.parametrize("trouble", ["no connection", "another leader"])
async def test_rewinding_starts_at_its_place_while_a_broker_is_away(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader starts ``rewind_ms`` milliseconds before the newest record, even if the first fetch fails.

    ``rewind_ms`` counts back from the newest record, not from now. So the reader also reads the records of this test,
    which are all older than ``rewind_ms``, as after a long outage.
    """
    await fill_all(producer, topic, 1)
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
        assert await reader.read_to_end(all_partitions(topic))
    assert sorted(got.offsets) == [(partition, 0) for partition in range(4)]


async def test_who_leads_its_group_still_finds_where_to_begin(
    settings: BusSettings, producer: Producer, topic: Topic, new_topic: NewTopic, group: str
) -> None:
    """A member that has led a rebalance can still compute its start offsets, which depend on the progress topic.

    When a member leads a rebalance, aiokafka makes its client follow only the topics of the group. The progress topic
    is not one of them. So ``Cluster`` itself keeps the metadata of the progress topic.
    """
    await fill_all(producer, topic, 1)
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
        assert await reader.read_to_end(all_partitions(topic)), "an empty log is read to its end"
        assert all(reader.log_clock(partition).since_us >= asked_us for partition in all_partitions(topic))
        await fill_all(producer, topic, 2)
        to_end = asyncio.create_task(reader.read_to_end(all_partitions(topic)))
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
        assert not await reader.read_to_end(frozenset({("railbus.nowhere", 0)}) | all_partitions(topic))


async def test_a_wait_for_an_end_that_the_log_has_lost_is_over(
    settings: BusSettings, producer: Producer, topic: Topic, group: str
) -> None:
    await fill_all(producer, topic, 2)
    reader = GroupReader(settings, topics=[topic], group=group, handler=RecordCollector())
    async with running_readers(reader):
        await until(lambda: reader.joined)
        assert reader._session is not None
        cluster = reader._session.cluster
        end_offsets = cluster.end_offsets

        async def before_the_loss(partitions: TopicPartitions) -> dict[Partition, int]:
            return {partition: end + 1 for partition, end in (await end_offsets(partitions)).items()}

        cluster.end_offsets = before_the_loss  # type: ignore[method-assign, assignment]
        to_end = asyncio.create_task(reader.read_to_end(all_partitions(topic)))
        await until(lambda: bool(reader._partitions._goals))
        cluster.end_offsets = end_offsets  # type: ignore[method-assign]
        await until(lambda: reader._partitions.positions == dict.fromkeys(all_partitions(topic), 2))
        assert not to_end.done()
        assert await reader.lag() == 0
        async with asyncio.timeout(10):
            assert await to_end


async def test_a_partition_without_a_leader_delays_no_other(
    settings: BusSettings, producer: Producer, topic: Topic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_all(producer, topic, 2)
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
    await fill_all(producer, topic, 2)
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
