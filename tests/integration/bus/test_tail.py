import asyncio
import logging
from collections.abc import Sequence

import pytest

from schemas.topics import Topic
from schemas.wire import encode
from services.bus import (
    AtTime,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Producer,
    Received,
    TailReader,
    UnreadableRecord,
)
from services.bus.read import fetch_connection
from services.bus.read.tail import Start
from services.runtime.clock import now_ms
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import (
    LIMIT_S,
    RecordCollector,
    chunk,
    closed,
    foreign_producer,
    put_raw,
    request_in,
    running_readers,
)
from tests.support.brokers import Broker
from tests.support.bus import any_role


async def fill(producer: Producer, topic: Topic, partition: int, count: int) -> None:
    request_id = request_in(partition)
    for future in [await producer.post(topic, chunk(request_id, seq)) for seq in range(count)]:
        await future


async def test_every_start(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    await fill(producer, topic, 0, 10)
    await asyncio.sleep(0.005)
    middle_ms = now_ms()
    await fill(producer, topic, 0, 10)
    starts: dict[Start, int] = {
        "beginning": 0,
        "end": 20,
        7: 7,
        1_000: 20,
        -5: 0,
        AtTime(middle_ms): 10,
        AtTime(0): 0,
        AtTime(now_ms() + 60_000): 20,
    }
    for start, begin in starts.items():
        got = RecordCollector()
        reader = TailReader(settings, handler=got)
        async with running_readers(reader):
            assert await reader.follow(topic, 0, start) == begin
            await got.until_count(20 - begin)
            assert reader.position(topic, 0) == 20
        assert got.offsets == [(0, offset) for offset in range(begin, 20)]


async def test_asking_for_offsets(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    reader = TailReader(settings, handler=RecordCollector())
    async with running_readers(reader):
        assert (await reader.begin_offset(topic, 1), await reader.end_offset(topic, 1)) == (0, 0)
        assert await reader.offset_at(topic, 1, 0) == 0
        await fill(producer, topic, 1, 5)
        assert (await reader.begin_offset(topic, 1), await reader.end_offset(topic, 1)) == (0, 5)
        assert await reader.offset_at(topic, 1, now_ms() + 60_000) == 5
        assert reader.position(topic, 1) is None
        with pytest.raises(ValueError, match="has no partition 4"):
            await reader.follow(topic, 4, "end")


async def test_following_under_load_misses_nothing_and_repeats_nothing(
    settings: BusSettings, producer: Producer, topic: Topic
) -> None:
    """A reader that follows four partitions under load misses nothing and repeats nothing.

    The reader starts with one partition, and adds the others one at a time. ``follow`` returns an offset for each
    partition. From this offset on, the reader gets each record of the partition exactly once.
    """
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    stop = False

    async def load(partition: int) -> int:
        request_id, seq = request_in(partition), 0
        while not stop:
            await producer.post(topic, chunk(request_id, seq))
            seq += 1
            await asyncio.sleep(0.001)
        return (await producer.send(topic, closed(request_id))).offset

    async with running_readers(reader):
        loads = [asyncio.create_task(load(partition)) for partition in range(4)]
        begins = {}
        for partition in range(4):
            await asyncio.sleep(0.1)
            begins[partition] = await reader.follow(topic, partition, "end")
        stop = True
        ends = await asyncio.gather(*loads)
        await got.until(lambda: set(enumerate(ends)) <= set(got.offsets))
    for partition, end in enumerate(ends):
        read = [offset for number, offset in got.offsets if number == partition]
        assert read == list(range(begins[partition], end + 1))


async def test_a_follow_does_not_wait_for_the_fetch_before_it(
    settings: BusSettings, producer: Producer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_connection, "WAIT_MS", 600_000)
    await fill(producer, topic, 1, 3)
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    async with running_readers(reader):
        await reader.follow(topic, 0, "end")
        await asyncio.sleep(0.3)  # the fetch of partition 0 waits on the broker now, for ten minutes
        async with asyncio.timeout(LIMIT_S):
            assert await reader.end_offset(topic, 1) == 3
            assert await reader.follow(topic, 1, "beginning") == 0
        await got.until_count(3)
        await producer.send(topic, closed(request_in(0)))
        await got.until_count(4)
    assert got.offsets == [(1, 0), (1, 1), (1, 2), (0, 0)]


async def test_unfollowing_ends_delivery_and_others_go_on(
    settings: BusSettings, producer: Producer, topic: Topic
) -> None:
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    async with running_readers(reader):
        for partition in (0, 1):
            await reader.follow(topic, partition, "end")
        await producer.send(topic, closed(request_in(0)))
        await got.until_count(1)
        await reader.unfollow(topic, 0)
        await reader.unfollow(topic, 3)
        assert reader.position(topic, 0) is None
        await producer.send(topic, closed(request_in(0)))
        await producer.send(topic, closed(request_in(1)))
        await got.until_count(2)
        assert await reader.follow(topic, 0, 1) == 1
        await got.until_count(3)
    assert got.offsets == [(0, 0), (1, 0), (0, 1)]


async def test_following_again_from_earlier_goes_back(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    await fill(producer, topic, 0, 6)
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    async with running_readers(reader):
        await reader.follow(topic, 0, 4)
        await got.until_count(2)
        assert await reader.follow(topic, 0, "end") == 6, "it stays where it is"
        assert await reader.follow(topic, 0, 2) == 2
        await got.until_count(6)
    assert got.offsets == [(0, offset) for offset in (4, 5, 2, 3, 4, 5)]


async def test_two_topics_at_once(settings: BusSettings, producer: Producer, new_topic: NewTopic) -> None:
    topics = [await new_topic(), await new_topic()]
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    async with running_readers(reader):
        for topic in topics:
            await reader.follow(topic, 0, "end")
        for topic in topics:
            await producer.send(topic, closed(request_in(0)))
        await got.until_count(2)
    assert {record.topic for record in got.records} == {topic.name for topic in topics}


async def test_unwanted_records_are_passed_over(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    mine, other = request_in(0), request_in(0)
    got = RecordCollector()
    reader = TailReader(
        settings, handler=got, record_filter=lambda kind, key: kind == "Closed" and key == mine.encode()
    )
    async with running_readers(reader):
        await reader.follow(topic, 0, "end")
        await producer.post(topic, chunk(mine, 0))
        await producer.post(topic, closed(other))
        await producer.send(topic, closed(mine))
        await got.until_count(1)
        assert reader.position(topic, 0) == 3
    assert got.offsets == [(0, 2)]


async def test_a_full_room_stops_delivery_until_a_place_is_given_back(
    settings: BusSettings, producer: Producer, topic: Topic
) -> None:
    await fill(producer, topic, 0, 1_000)
    room = InFlightLimit(10)
    got = RecordCollector()

    def keep(records: Sequence[Received | UnreadableRecord]) -> None:
        room.acquire(len(records))
        got(records)

    reader = TailReader(settings, handler=keep, in_flight_limit=room)
    async with running_readers(reader):
        await reader.follow(topic, 0, "beginning")
        await got.until_count(10)
        await asyncio.sleep(0.2)
        assert len(got.records) == 10
        assert reader.position(topic, 0) == 10
        room.release(3)
        await got.until_count(13)
        await asyncio.sleep(0.2)
        assert len(got.records) == 13
        for _ in range(987):
            room.release()
            await asyncio.sleep(0)
        await got.until_count(1_000)
    assert got.offsets == [(0, offset) for offset in range(1_000)]
    assert max(got.calls) <= 10


async def test_what_a_handler_raises_ends_the_reader(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    def fail(_: Sequence[Received | UnreadableRecord]) -> None:
        raise ZeroDivisionError

    reader = TailReader(settings, handler=fail)
    run = asyncio.create_task(reader.run())
    await reader.follow(topic, 0, "end")
    await producer.send(topic, closed(request_in(0)))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run, LIMIT_S)


async def test_what_others_put_on_the_log(embedded_broker: Broker, settings: BusSettings, topic: Topic) -> None:
    """The reader skips records of an unknown kind or version, and reads records that their writer has compressed.

    The reader returns a malformed record as an ``UnreadableRecord``.
    """
    good = closed(request_in(0))
    value, headers = encode(good)
    newer = [("kind", b"Closed"), ("v", b"2")]
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    async with running_readers(reader):
        await reader.follow(topic, 0, "end")
        async with foreign_producer(embedded_broker.address) as other:
            await other.send_and_wait(topic.name, b"\x00garbage", partition=0)
            await other.send_and_wait(topic.name, value, key=good.request_id.encode(), headers=newer, partition=0)
            await other.send_and_wait(topic.name, value, headers=[("kind", b"Novelty"), ("v", b"1")], partition=0)
            await other.send_and_wait(topic.name, None, key=b"k", headers=headers, partition=0)
            await put_raw(other, topic.name, good, 0)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            async with foreign_producer(embedded_broker.address, compression_type=codec) as other:
                await put_raw(other, topic.name, good, 0)
        await got.until_count(7)
    assert [type(record) for record in got.records] == [UnreadableRecord, UnreadableRecord] + [Received] * 5
    assert got.offsets == [(0, offset) for offset in (0, 3, 4, 5, 6, 7, 8)]
    unread = got.records[0]
    assert isinstance(unread, UnreadableRecord)
    assert (unread.value, unread.headers) == (b"\x00garbage", ())


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_no_log_level_shows_what_is_said(
    settings: BusSettings, producer: Producer, topic: Topic, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level)
    got = RecordCollector()
    readers = TailReader(settings, handler=got), GroupReader(settings, topics=[topic], group=topic.name, handler=got)
    writer = Producer(settings, role=any_role(), name="logged")
    async with running_readers(*readers):
        await writer.start()
        await readers[0].follow(topic, 0, "beginning")
        await writer.send(topic, closed(request_in(0), "a secret"))
        await got.until_count(2)
        await writer.stop()
    assert not [record for record in caplog.records if "a secret" in record.getMessage()]
