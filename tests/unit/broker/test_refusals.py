"""Test that bad bytes make the broker close only their own connection. Other mistakes get an error code."""

import asyncio
import logging
import random
import struct
import time

import pytest

from services.broker.apis.dispatch import API_VERSIONS, APIS, handle_frame
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import CloseConnection, DeferredResponse
from services.broker.protocol.wire import MalformedRequest, Writer
from services.broker.service import BrokerService
from services.broker.settings import BrokerSettings
from services.broker.state import BrokerState
from services.broker.storage import error_log
from tests.unit.broker import raw
from tests.unit.broker.batches import build, records
from tests.unit.broker.disk import disk_that_is_full
from tests.unit.broker.raw import connected


@pytest.fixture(autouse=True)
def no_traceback(caplog):
    caplog.set_level(logging.INFO, "railbus.broker")
    yield
    assert not [record for record in caplog.records if record.exc_info]


async def serves(broker: BrokerService) -> bool:
    async with connected(broker) as client:
        return (await client.ask(raw.METADATA, 1, raw.metadata())).i32() == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"\xff" * 64,
        b"\x00\x00\x00\x00",
        b"\x80\x00\x00\x00rest",
        b"\x00\x00\x00\x09123456789",
        b"\x7f\xff\xff\xff",
        struct.pack(">ihhi", 12, raw.METADATA, 1, 7) + b"\x7f\xff\xff\xff",  # a client id that is not there
        struct.pack(">ihhih", 14, 999, 0, 7, -1) + bytes(4),
        struct.pack(">ihhih", 14, raw.METADATA, 99, 7, -1) + bytes(4),
        struct.pack(">ihhih", 14, raw.METADATA, -1, 7, -1) + bytes(4),
        struct.pack(">ihhih", 14, raw.PRODUCE, 0, 7, -1) + bytes(4),
        struct.pack(">ihhih", 14, raw.METADATA, 1, 7, -1) + b"\x7f\xff\xff\xff",  # two thousand million topics
    ],
)
async def test_garbage_closes_the_connection_with_one_line(broker, payload, caplog):
    async with connected(broker) as client:
        client.writer.write(payload)
        assert await client.is_closed()
    assert len([record for record in caplog.records if "closed the connection" in record.message]) == 1
    assert await serves(broker)


async def test_a_request_over_the_limit_is_refused_by_its_length_alone():
    broker = BrokerService(max_request_bytes=1000)
    await broker.start()
    async with connected(broker) as client:
        client.writer.write(struct.pack(">i", 1001))
        assert await client.is_closed()
    await broker.stop()


async def test_a_client_that_goes_in_the_middle_of_a_request_is_forgotten(broker, caplog):
    async with connected(broker) as client:
        client.writer.write(struct.pack(">i", 500) + b"half")
        await client.writer.drain()
    assert await serves(broker)
    assert not caplog.records


async def test_half_a_request_does_not_stay_for_ever():
    broker = BrokerService(idle_connection_ms=200)
    await broker.start()
    async with connected(broker) as client:
        client.writer.write(struct.pack(">i", 500) + b"half")
        assert await client.is_closed()
    await broker.stop()


async def test_connections_beyond_the_bound_are_closed_at_once():
    broker = BrokerService(max_connections=2)
    await broker.start()
    async with connected(broker) as first, connected(broker) as second:
        for client in (first, second):
            assert (await client.ask(raw.METADATA, 1, raw.metadata())).i32() == 1
        async with connected(broker) as third:
            assert await third.is_closed()
        first.writer.close()
        await first.writer.wait_closed()
        assert await serves(broker)
    await broker.stop()


async def test_a_newer_client_learns_which_apiversions_it_may_use(broker):
    async with connected(broker) as client:
        client.send(API_VERSIONS, 3, b"\x00\x08aiokafka\x05x.y\x00")
        _, answer = await client.answer()
        assert answer.i16() == ErrorCode.UNSUPPORTED_VERSION
        assert answer.array(lambda: (answer.i16(), answer.i16(), answer.i16())) == [(API_VERSIONS, 0, 2)]
        answer = await client.ask(API_VERSIONS, 0, b"")
        assert answer.i16() == ErrorCode.NONE
        served = answer.array(lambda: (answer.i16(), answer.i16(), answer.i16()))
        assert served == [(key, api.min_version, api.max_version) for key, api in APIS.items()]


async def test_produce_without_acks_is_answered_by_silence_or_by_closing(broker):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        client.send(raw.PRODUCE, 7, raw.produce("t", build([b"a"]), acks=0))
        answer = await client.ask(raw.FETCH, 4, raw.fetch(("t", 0, 0)))
        assert records(raw.fetched(answer)[0][3]) == [(0, b"a")]
        client.send(raw.PRODUCE, 7, raw.produce("no", build([b"a"]), acks=0))
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("topic", "partition", "acks", "batch", "code"),
    [
        ("no", 0, -1, build(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, -1, build(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, -1, build(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 2, build(), ErrorCode.INVALID_REQUIRED_ACKS),
        ("t", 0, 1, build()[:-1], ErrorCode.INVALID_RECORD),
        ("t", 0, 1, build()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        ("t", 0, 1, build([b"x" * 1_100_000]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_a_batch_is_refused_with_the_protocols_error(broker, topic, partition, acks, batch, code):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        answer = await client.ask(raw.PRODUCE, 7, raw.produce(topic, batch, acks=acks, partition=partition))
        assert raw.produced(answer) == (code, -1)
        answer = await client.ask(raw.PRODUCE, 7, raw.produce("t", build([b"fine"])))
        assert raw.produced(answer) == (ErrorCode.NONE, 0)


# Fuzz test: any request body gets a response, or closes only its own connection.


def valid_bodies() -> list[tuple[int, int, bytes]]:
    """Return (API key, version, body) of some well-formed requests, which a test damages."""
    join = Writer().string("g").i32(10_000).i32(10_000).string("").string(None).string("consumer")
    join.i32(1).string("range").blob(b"meta")
    return [
        (raw.PRODUCE, 7, raw.produce("t", build([b"value"], producer=(5, 0, 0)))),
        (raw.FETCH, 4, raw.fetch(("t", 0, 0))),
        (raw.METADATA, 4, Writer().i32(1).string("t").i8(1).done()),
        (raw.JOIN, 5, join.done()),
        (raw.CREATE_TOPICS, 3, Writer().i32(1).string("u").i32(1).i16(1).i32(0).i32(0).i32(9).i8(0).done()),
        (2, 5, Writer().i32(-1).i8(0).i32(1).string("t").i32(1).i32(0).i32(0).i64(5).done()),
        (8, 7, Writer().string("g").i32(-1).string("").string(None).i32(0).done()),
        (32, 2, Writer().i32(1).i8(2).string("t").i32(-1).i8(0).i8(0).done()),
        (37, 1, Writer().i32(1).string("t").i32(2).i32(-1).i32(100).i8(1).done()),
    ]


def damaged(rng: random.Random) -> tuple[int, int, bytes]:
    key, version, body = rng.choice(valid_bodies())
    kind = rng.randrange(4)
    if kind == 0:
        key = rng.choice(list(APIS))
        version = rng.randint(APIS[key].min_version, APIS[key].max_version)
        return key, version, rng.randbytes(rng.randrange(80))
    changed = bytearray(body)
    if kind == 1:
        del changed[rng.randrange(len(changed)) :]
    else:
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return key, version, bytes(changed)


@pytest.mark.parametrize("seed", range(8))
async def test_any_bytes_are_answered_or_refused_and_never_break_the_broker(seed):
    rng = random.Random(seed)
    broker = BrokerState(BrokerSettings())
    broker.start()
    broker.topics.create("t", 1, {}, now_ms=0)
    waiting: list[DeferredResponse] = []
    outcomes = {"answered": 0, "refused": 0}
    for _ in range(500):
        key, version, body = damaged(rng)
        frame = Writer().i16(key).i16(version).i32(1).string("fuzz").done() + body
        try:
            answer = handle_frame(broker, frame, "127.0.0.1")
        except (MalformedRequest, CloseConnection):
            outcomes["refused"] += 1
            continue
        outcomes["answered"] += 1
        assert answer is None or isinstance(answer, bytes | DeferredResponse)
        if isinstance(answer, DeferredResponse):
            waiting.append(answer)
    assert min(outcomes.values()) > 50, "the fuzz is to reach both"
    for each in waiting:
        each.cancel()
    await asyncio.sleep(0)
    broker.stop()


async def test_a_batch_that_cannot_be_kept_is_refused_and_not_read_by_anybody(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(error_log, "_errors", error_log.StorageErrorLog())
    broker = BrokerService(data_dir=tmp_path)
    await broker.start()
    await raw.create(broker, "t")
    in_the_way = tmp_path / "topics" / "t"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_bytes(b"")
    async with connected(broker) as client:
        ask = raw.produce("t", build([b"a"], producer=(5, 0, 0)))
        assert raw.produced(await client.ask(raw.PRODUCE, 7, ask)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert "t-0: the data directory cannot be written (Not a directory)" in caplog.text
        in_the_way.unlink()
        assert raw.produced(await client.ask(raw.PRODUCE, 7, ask)) == (ErrorCode.NONE, 0)
        answer = await client.ask(raw.FETCH, 4, raw.fetch(("t", 0, 0)))
        assert records(raw.fetched(answer)[0][3]) == [(0, b"a")]
    await broker.stop()


async def test_a_change_that_cannot_be_stored_is_an_error_of_its_topic(tmp_path, monkeypatch):
    monkeypatch.setattr(error_log, "_errors", error_log.StorageErrorLog())
    broker = BrokerService(data_dir=tmp_path)
    await broker.start()
    await raw.create(broker, "t")
    change = Writer().i32(1).i8(2).string("t").i32(1).string("retention.ms")
    async with connected(broker) as client:
        commit = Writer().string("g").i32(-1).string("").i64(-1).i32(1).string("t").i32(1).i32(0).i64(5).string("")
        await client.ask(8, 2, commit.done())
        with disk_that_is_full(0):
            answer = await client.ask(raw.METADATA, 0, Writer().i32(1).string("new").done())
            answer.i32(), answer.i32(), answer.string(), answer.i32(), answer.i32()
            assert (answer.i16(), answer.string()) == (ErrorCode.KAFKA_STORAGE_ERROR, "new")
            for key, entry in ((33, Writer().string("5")), (44, Writer().i8(0).string("5"))):
                answer = await client.ask(key, 0, change.done() + entry.i8(0).done())
                assert (answer.i32(), answer.i32(), answer.i16()) == (0, 1, ErrorCode.KAFKA_STORAGE_ERROR)
            answer = await client.ask(42, 0, Writer().i32(1).string("g").done())
            assert (answer.i32(), answer.i32(), answer.string()) == (0, 1, "g")
            assert answer.i16() == ErrorCode.KAFKA_STORAGE_ERROR
    await broker.stop()


async def test_unreadable_old_records_are_an_error_of_their_partition_alone(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(error_log, "_errors", error_log.StorageErrorLog())
    broker = BrokerService(data_dir=tmp_path)
    await broker.start()
    await raw.create(broker, "t", partitions=2)
    async with connected(broker) as client:
        for partition in (0, 1):
            young = build([b"a"], times_ms=[time.time_ns() // 1_000_000])
            await client.ask(raw.PRODUCE, 7, raw.produce("t", young, partition=partition))
    await broker.stop()
    broker = BrokerService(data_dir=tmp_path)
    await broker.start()
    (tmp_path / "topics" / "t" / "0" / f"{0:020d}.log").write_bytes(b"")
    async with connected(broker) as client:
        for wait_ms, min_bytes in ((0, 1), (500, 100_000)):
            asked = raw.fetch(("t", 0, 0), ("t", 1, 0), wait_ms=wait_ms, min_bytes=min_bytes)
            damaged, whole = raw.fetched(await client.ask(raw.FETCH, 4, asked))
            assert damaged == ("t", 0, ErrorCode.KAFKA_STORAGE_ERROR, b"")
            assert records(whole[3]) == [(0, b"a")]
        search = Writer().i32(-1).i32(1).string("t").i32(1).i32(0).i64(0).done()
        answer = await client.ask(2, 1, search)
        assert (answer.i32(), answer.string(), answer.i32(), answer.i32()) == (1, "t", 1, 0)
        assert answer.i16() == ErrorCode.KAFKA_STORAGE_ERROR
    assert "t-0: the data directory cannot be read (a segment file is shorter than it was)" in caplog.text
    await broker.stop()
