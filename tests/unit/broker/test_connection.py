"""Tests of several requests on one connection: the order of responses, waiting fetches, and slow clients."""

import asyncio

from services.broker import service
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import DeferredResponse
from tests.support.waiting import until
from tests.unit.broker import raw
from tests.unit.broker.batches import build, records
from tests.unit.broker.raw import connected

LONG_MS = 60_000


async def test_pipelined_requests_are_answered_in_their_order(broker):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        for number in range(50):
            client.send(raw.PRODUCE, 7, raw.produce("t", build([b"%d" % number])), correlation=number)
        for number in range(50):
            correlation, answer = await client.answer()
            assert (correlation, *raw.produced(answer)) == (number, ErrorCode.NONE, number)


async def test_a_fetch_that_waits_holds_up_its_own_connection_and_no_other(broker):
    await raw.create(broker, "t")
    async with connected(broker) as waiting, connected(broker) as other:
        waiting.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), wait_ms=LONG_MS), correlation=1)
        waiting.send(raw.METADATA, 1, raw.metadata(), correlation=2)
        assert raw.produced(await other.ask(raw.PRODUCE, 7, raw.produce("t", build([b"a"])))) == (ErrorCode.NONE, 0)
        correlation, answer = await waiting.answer()
        assert correlation == 1
        assert records(raw.fetched(answer)[0][3]) == [(0, b"a")]
        assert (await waiting.answer())[0] == 2


async def test_requests_come_in_any_pieces(broker):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        sent = bytearray()
        write, client.writer.write = client.writer.write, sent.extend
        for number in range(3):
            client.send(raw.PRODUCE, 7, raw.produce("t", build([b"x" * 100])), correlation=number)
        client.writer.write = write
        for at in range(0, len(sent), 7):
            write(bytes(sent[at : at + 7]))
            await client.writer.drain()
        assert [(await client.answer())[0] for _ in range(3)] == [0, 1, 2]


async def test_one_answer_tells_of_all_that_was_appended_at_once(broker):
    await raw.create(broker, "t", 2)
    async with connected(broker) as waiting, connected(broker) as other:
        waiting.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), ("t", 1, 0), wait_ms=LONG_MS))
        await asyncio.sleep(0.05)
        other.writer.transport.pause_reading()
        first, second = (raw.produce("t", build([b"%d" % number]), partition=number) for number in range(2))
        sent = bytearray()
        write, other.writer.write = other.writer.write, sent.extend
        other.send(raw.PRODUCE, 7, first)
        other.send(raw.PRODUCE, 7, second)
        write(bytes(sent))
        other.writer.transport.resume_reading()
        _, answer = await waiting.answer()
        assert [records(got) for *_, got in raw.fetched(answer)] == [[(0, b"0")], [(0, b"1")]]


async def test_a_fetch_waits_for_as_much_as_it_asked_for_or_its_time(broker):
    await raw.create(broker, "t")
    size = len(build([b"a"]))
    async with connected(broker) as waiting, connected(broker) as other:
        waiting.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), wait_ms=LONG_MS, min_bytes=2 * size))
        await other.ask(raw.PRODUCE, 7, raw.produce("t", build([b"a"])))
        await other.ask(raw.PRODUCE, 7, raw.produce("t", build([b"b"])))
        _, answer = await waiting.answer()
        assert records(raw.fetched(answer)[0][3]) == [(0, b"a"), (1, b"b")]
        answer = await waiting.ask(raw.FETCH, 4, raw.fetch(("t", 0, 0), wait_ms=10, min_bytes=3 * size))
        assert len(records(raw.fetched(answer)[0][3])) == 2
        answer = await waiting.ask(raw.FETCH, 4, raw.fetch(("t", 0, 2), wait_ms=10))
        assert raw.fetched(answer) == [("t", 0, ErrorCode.NONE, b"")]


async def test_limits_of_a_fetch_hold_and_something_always_comes(broker):
    await raw.create(broker, "t", 2)
    size = len(build([b"a"]))
    async with connected(broker) as client:
        for number in (0, 0, 1, 1):
            await client.ask(raw.PRODUCE, 7, raw.produce("t", build([b"a"]), partition=number))

        async def counts(max_bytes):
            answer = await client.ask(raw.FETCH, 4, raw.fetch(("t", 0, 0), ("t", 1, 0), max_bytes=max_bytes))
            return [len(records(got)) for *_, got in raw.fetched(answer)]

        assert await counts(0) == [1, 0]
        assert await counts(2 * size) == [2, 0]
        assert await counts(3 * size) == [2, 1]
        assert await counts(4 * size) == [2, 2]


async def test_what_is_asked_beyond_the_log_is_refused_at_once(broker):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        for topic, partition, offset, code in (
            ("t", 0, 1, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("t", 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("t", 7, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("no", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            answer = await client.ask(raw.FETCH, 4, raw.fetch((topic, partition, offset), wait_ms=LONG_MS))
            assert raw.fetched(answer) == [(topic, partition, code, b"")]


async def test_a_fetch_that_waits_is_told_when_its_topic_is_deleted(broker):
    await raw.create(broker, "t")
    async with connected(broker) as waiting, connected(broker) as other:
        waiting.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), wait_ms=LONG_MS))
        await asyncio.sleep(0.05)
        await other.ask(20, 3, b"\0\0\0\1\0\1t\0\0\0\0")
        _, answer = await waiting.answer()
        assert raw.fetched(answer) == [("t", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")]


async def test_a_client_that_does_not_read_is_not_served_further(broker):
    """A client that does not read its responses is served no further until it reads again.

    Otherwise, its responses would pile up in the broker's memory.
    """
    await raw.create(broker, "t")
    async with connected(broker) as slow, connected(broker) as other:
        await other.ask(raw.PRODUCE, 7, raw.produce("t", build([b"x" * 500_000])))
        slow.writer.transport.pause_reading()
        for number in range(100):
            slow.send(raw.FETCH, 4, raw.fetch(("t", 0, 0)), correlation=number)
        await slow.writer.drain()
        for _ in range(3):
            assert raw.produced(await other.ask(raw.PRODUCE, 7, raw.produce("t", build())))[0] == ErrorCode.NONE
        (connection,) = [each for each in broker.connections if each.unsent_bytes]
        assert connection.unsent_bytes < 2_000_000
        slow.writer.transport.resume_reading()
        for number in range(100):
            correlation, answer = await slow.answer()
            assert correlation == number
            assert len(raw.fetched(answer)[0][3]) > 500_000


async def test_paused_reads_go_on_after_a_second_wait(broker):
    await raw.create(broker, "t")
    async with connected(broker) as client:
        client.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), wait_ms=300), correlation=0)
        client.send(raw.PRODUCE, 7, raw.produce("t", build([b"x" * 1_048_450])), correlation=1)
        client.send(raw.FETCH, 4, raw.fetch(("t", 0, 1), wait_ms=300), correlation=2)
        assert [(await client.answer())[0] for _ in range(3)] == [0, 1, 2]
        await client.ask(raw.METADATA, 1, raw.metadata())


def test_a_late_answer_is_given_once_and_not_after_a_cancel():
    told: list[bytes] = []
    later = DeferredResponse()
    later.set_result(b"early")
    later.then(told.append)
    later.set_result(b"again")
    assert told == [b"early"]

    cancelled: list[str] = []
    later = DeferredResponse(lambda: cancelled.append("yes"))
    later.then(told.append)
    later.cancel()
    later.cancel()
    later.set_result(b"too late")
    assert (told, cancelled) == ([b"early"], ["yes"])


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read(monkeypatch):
    monkeypatch.setattr(service, "_FAREWELL_S", 0.05)
    broker = service.BrokerService()
    await broker.start()
    await raw.create(broker, "t")
    async with connected(broker) as slow:
        for _ in range(40):
            await slow.ask(raw.PRODUCE, 7, raw.produce("t", build([b"x" * 500_000])))
        slow.writer.transport.pause_reading()
        slow.send(raw.FETCH, 4, raw.fetch(("t", 0, 0), max_bytes=20_000_000))
        await until(lambda: any(connection.unsent_bytes for connection in broker.connections))
        async with asyncio.timeout(raw.SOON_S):
            await broker.stop()
        await asyncio.sleep(0)
        assert not broker.connections
