"""Test where a reader continues if its next offset is gone.

Either retention has deleted the record, or the broker has lost the end of its log.
"""

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.topics import STREAMS, Topic
from services.bus import BusSettings, GroupReader, Producer, TailReader, ensure_topics
from services.bus.kafka.cluster import Cluster
from services.bus.read import fetcher
from services.bus.read.fetcher import Events, Fetcher
from services.bus.read.record_decoder import RecordDecoder
from services.bus.records import Partition
from tests.integration.bus.lab import RecordCollector, chunk, request_in, running_readers
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.waiting import until

REQUEST = request_in(0)


class Forgetful:
    """A broker whose topics can be reset to an earlier state. Offsets that groups have committed are not reset."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._earlier = folder / "earlier"
        self.broker = Broker("embedded", self._data)
        self.broker.start()
        self.settings = BusSettings(bootstrap=self.broker.address, session_timeout_ms=6_000)

    def remember(self) -> None:
        shutil.copytree(self._data / "topics", self._earlier)

    async def lose_the_rest(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        shutil.rmtree(self._data / "topics")
        shutil.copytree(self._earlier, self._data / "topics")
        await asyncio.to_thread(self.broker.start)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Forgetful]:
    made = Forgetful(tmp_path)
    yield made
    made.broker.kill()


@pytest.fixture
async def topic(forgetful: Forgetful) -> Topic:
    made = copy_of(STREAMS)
    await ensure_topics(forgetful.settings, [made])
    return made


async def put(forgetful: Forgetful, topic: Topic, *seqs: int) -> None:
    """Write chunks with these ``seq`` through a new producer, which knows nothing of records that were lost."""
    producer = Producer(forgetful.settings, role=any_role(), name="test")
    await producer.start()
    for seq in seqs:
        await producer.send(topic, chunk(REQUEST, seq))
        await asyncio.sleep(0.003)  # so that each record has a different timestamp
    await producer.stop()


@pytest.mark.parametrize(("overlap_ms", "again"), [(0, []), (3_600_000, [0, 1, 2])])
async def test_a_follower_goes_on_where_the_lost_tail_began(
    forgetful: Forgetful, topic: Topic, overlap_ms: int, again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERLAP_MS", overlap_ms)
    got = RecordCollector()
    tail = TailReader(forgetful.settings, handler=got)
    async with running_readers(tail):
        await tail.follow(topic, 0, "beginning")
        await put(forgetful, topic, 0, 1, 2)
        forgetful.remember()
        await put(forgetful, topic, 3, 4, 5)
        await got.until_count(6)
        await forgetful.lose_the_rest()
        await put(forgetful, topic, 16, 17)
        await got.until(lambda: got.seqs[-1] == 17)
    assert got.seqs == [0, 1, 2, 3, 4, 5, *again, 16, 17]
    assert got.offsets[-2:] == [(0, 3), (0, 4)]


async def test_a_follower_waits_at_the_new_end_where_nothing_was_written_since(
    forgetful: Forgetful, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERLAP_MS", 0)
    got = RecordCollector()
    tail = TailReader(forgetful.settings, handler=got)
    async with running_readers(tail):
        await tail.follow(topic, 0, "beginning")
        await put(forgetful, topic, 0, 1, 2)
        forgetful.remember()
        await put(forgetful, topic, 3, 4)
        await got.until_count(5)
        await forgetful.lose_the_rest()
        await until(lambda: tail.position(topic, 0) == 3)
    assert got.seqs == [0, 1, 2, 3, 4]


async def test_group_resumes_at_the_lost_tail_and_new_member_at_the_oldest(
    forgetful: Forgetful, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERLAP_MS", 0)
    got, new = RecordCollector(), RecordCollector()
    reader = GroupReader(forgetful.settings, topics=[topic], group="workers", handler=got)
    async with running_readers(reader):
        await put(forgetful, topic, 0, 1, 2)
        forgetful.remember()
        await put(forgetful, topic, 3, 4, 5)
        await got.until_count(6)
        await until(lambda: not reader._commits.due(), "all is committed")
        await forgetful.lose_the_rest()
        await put(forgetful, topic, 16)
        await got.until(lambda: got.seqs[-1] == 16)
        await put(forgetful, topic, 17, 18, 19)
        await got.until(lambda: got.seqs[-1] == 19)
        await until(lambda: not reader._commits.due(), "all is committed")
    assert got.seqs == [0, 1, 2, 3, 4, 5, 16, 17, 18, 19]
    await forgetful.lose_the_rest()
    async with running_readers(GroupReader(forgetful.settings, topics=[topic], group="workers", handler=new)):
        await new.until_count(3)
    assert new.seqs == [0, 1, 2]


async def test_who_keeps_state_is_told_before_anything_is_read_on(forgetful: Forgetful, topic: Topic) -> None:
    told: list[object] = []
    async with fetching(forgetful.settings, topic, told) as reading:
        await put(forgetful, topic, 0, 1, 2)
        forgetful.remember()
        await put(forgetful, topic, 3, 4, 5)
        await until(lambda: told[-1:] == [5])
        await forgetful.lose_the_rest()
        await until(lambda: told[-1:] == [2])
        assert told == [0, 1, 2, 3, 4, 5, ((topic.name, 0), 6, 0), 0, 1, 2]
        told.clear()
        reading.start_at({(topic.name, 0): 999})
        await until(lambda: told[-1:] == [2])
        assert told == [((topic.name, 0), 999, 0), 0, 1, 2]


async def test_what_retention_took_is_passed_over_and_told(forgetful: Forgetful) -> None:
    brief = dataclasses.replace(copy_of(STREAMS), retention_ms=1)
    await ensure_topics(forgetful.settings, [brief])
    await put(forgetful, brief, 0, 1, 2)
    tail = TailReader(forgetful.settings, handler=RecordCollector())

    async def all_gone() -> bool:
        return await tail.begin_offset(brief, 0) == 3

    async with running_readers(tail):
        await until(all_gone, "retention is looked at every second", every_s=0.1)
    told: list[object] = []
    async with fetching(forgetful.settings, brief, told) as reading:
        await until(lambda: bool(told))
        assert told == [((brief.name, 0), 0, 3)]
        assert reading.position((brief.name, 0)) == 3


@asynccontextmanager
async def fetching(settings: BusSettings, topic: Topic, told: list[object]) -> AsyncIterator[Fetcher]:
    """Run a fetcher within the ``with`` block, and yield it.

    The list ``told`` gets the ``seq`` of each record that was read, and the arguments of each call of ``on_moved``.
    """

    def hand_over(events: Events, _: object) -> None:
        told.extend(record.event.seq for record in events)  # type: ignore[union-attr]

    def on_moved(partition: Partition, wanted: int, begin: int) -> None:
        told.append((partition, wanted, begin))

    cluster = Cluster(settings, "test")
    await cluster.open()
    await cluster.wait_for_topics([topic.name])
    reading = Fetcher(cluster, decoder=RecordDecoder(), hand_over=hand_over, on_moved=on_moved)
    reading.start_at({(topic.name, 0): 0})
    async with running_readers(reading):
        yield reading
    await cluster.close()
