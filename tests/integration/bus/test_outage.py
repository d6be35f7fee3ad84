"""Test that clients survive an outage of the broker: no accepted event is lost, and the outage is logged only once."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

import pytest

from schemas.topics import STREAMS, Topic
from services.bus import (
    BusSettings,
    GroupReader,
    NotAcknowledged,
    Producer,
    ProducerClosed,
    Received,
    TailReader,
    ensure_topics,
)
from services.bus.write import producer as producer_module
from services.runtime.metrics import BROKER_AWAY
from tests.integration.bus.lab import LIMIT_S, RecordCollector, chunk, closed, request_in, running_readers
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.waiting import until

LONG_S = 90.0


@pytest.fixture
def own(own_embedded_broker: Broker) -> BusSettings:
    return BusSettings(bootstrap=own_embedded_broker.address, session_timeout_ms=6_000)


@pytest.fixture
async def log(own: BusSettings) -> Topic:
    topic = copy_of(STREAMS)
    await ensure_topics(own, [topic])
    return topic


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [message for message in caplog.messages if words in message]


async def off_and_on(broker: Broker, away_s: float) -> None:
    """Stop the broker, and start it again after ``away_s`` seconds, without blocking the event loop."""
    await asyncio.to_thread(broker.stop)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(broker.start)


@pytest.mark.parametrize("away_s", [pytest.param(2.0, id="2s"), pytest.param(16.0, id="16s", marks=pytest.mark.slow)])
async def test_the_broker_is_away_for_a_while(
    own_embedded_broker: Broker, own: BusSettings, log: Topic, caplog: pytest.LogCaptureFixture, away_s: float
) -> None:
    """All accepted events arrive, even if the outage is longer than the request timeout of 15 s."""
    others_away = BROKER_AWAY._value.get()  # brokers of earlier tests in this process, which never came back
    caplog.set_level(logging.WARNING, "railbus.bus")
    tailed, grouped = RecordCollector(), RecordCollector()
    tail = TailReader(own, handler=tailed)
    group = GroupReader(own, topics=[log], group="workers", handler=grouped)
    producer = Producer(own, role=any_role(), name="test")
    await producer.start()
    requests = [request_in(partition) for partition in range(4)]
    posted: list[asyncio.Future[object]] = []
    async with running_readers(tail, group):
        for partition in range(4):
            await tail.follow(log, partition, "end")
        outage = asyncio.create_task(off_and_on(own_embedded_broker, away_s))
        seq, most_away = 0, others_away
        while not outage.done() or seq < 50:
            most_away = max(most_away, BROKER_AWAY._value.get())
            posted += [await producer.post(log, chunk(request_id, seq)) for request_id in requests]
            seq += 1
            await asyncio.sleep(0.02)
        await outage
        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*posted)
        await tailed.until_count(len(posted))
        await grouped.until(lambda: set(grouped.offsets) >= set(tailed.offsets))
    await producer.stop()
    for got in (tailed, grouped):
        for request_id in requests:
            events = [r.event for r in got.records if isinstance(r, Received) and r.event.request_id == request_id]
            seqs = [event.seq for event in events if hasattr(event, "seq")]
            if got is tailed:
                assert seqs == list(range(seq)), "every record once and in order"
            else:
                assert sorted(set(seqs)) == list(range(seq)), "a worker may see some again after a restart"
    assert len(said(caplog, "unreachable")) == 1
    assert len(said(caplog, "is back")) == 1
    assert most_away == others_away + 1
    assert BROKER_AWAY._value.get() == others_away


async def test_the_broker_is_not_there_yet(
    own_embedded_broker: Broker, own: BusSettings, log: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(own_embedded_broker.stop)
    caplog.set_level(logging.WARNING, "railbus.bus")
    got = RecordCollector()
    tail, producer = TailReader(own, handler=got), Producer(own, role=any_role(), name="test")
    async with running_readers(tail):
        starts: list[Callable[[], Awaitable[object]]] = [
            producer.start,
            lambda: ensure_topics(own, [log]),
            lambda: tail.follow(log, 0, "end"),
        ]
        waiting = [asyncio.ensure_future(start()) for start in starts]
        await until(lambda: said(caplog, "unreachable"))
        await asyncio.sleep(1.0)
        assert not any(one.done() for one in waiting)
        assert said(caplog, "unreachable") == [f"broker {own.bootstrap} unreachable (connection refused); waiting"]
        await asyncio.to_thread(own_embedded_broker.start)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*waiting)
        await producer.send(log, closed(request_in(0)))
        await got.until_count(1)
    await producer.stop()
    assert said(caplog, "is back") == [f"broker {own.bootstrap} is back"]


async def test_stopping_while_the_broker_is_away_says_what_is_missing(
    own_embedded_broker: Broker,
    own: BusSettings,
    log: Topic,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "FLUSH_S", 0.5)
    producer = Producer(own, role=any_role(), name="test")
    await producer.start()
    await producer.send(log, closed(request_in(0)))
    await asyncio.to_thread(own_embedded_broker.stop)
    futures = [await producer.post(log, closed(request_in(3))) for _ in range(3)]
    async with asyncio.timeout(LIMIT_S):
        await producer.stop()
    for future in futures:
        with pytest.raises(NotAcknowledged):
            await future
    assert said(caplog, f"{log.name}[3]: 3 accepted event(s) were not acknowledged")


async def test_a_full_buffer_makes_callers_wait_and_loses_nothing(
    own_embedded_broker: Broker, own: BusSettings, log: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "BUFFER_BYTES", 20_000)
    producer = Producer(own, role=any_role(), name="test")
    await producer.start()
    await asyncio.to_thread(own_embedded_broker.stop)
    request_id = request_in(0)
    accepted: list[asyncio.Future[object]] = []

    async def post_all() -> None:
        for seq in range(100):
            accepted.append(await producer.post(log, chunk(request_id, seq, "x" * 500)))  # noqa: PERF401 - counted

    posting = asyncio.create_task(post_all())
    await asyncio.sleep(0.3)
    assert 20 <= len(accepted) <= 40, "as many as the buffer holds"
    await asyncio.to_thread(own_embedded_broker.start)
    async with asyncio.timeout(LIMIT_S):
        await posting
        positions = await asyncio.gather(*accepted)
    await producer.stop()
    assert [position.offset for position in positions] == list(range(100))  # type: ignore[attr-defined]


async def test_stopping_ends_all_calls_that_wait_for_a_full_buffer(
    own_embedded_broker: Broker, own: BusSettings, log: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a producer stops, all calls that wait for room in its buffer fail."""
    monkeypatch.setattr(producer_module, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(producer_module, "FLUSH_S", 0.1)
    producer = Producer(own, role=any_role(), name="test")
    await producer.start()
    await asyncio.to_thread(own_embedded_broker.kill)
    request_id = request_in(0)
    posting = [asyncio.create_task(producer.post(log, chunk(request_id, seq, "x" * 500))) for seq in range(100)]
    await asyncio.sleep(0.3)
    waiting = [task for task in posting if not task.done()]
    assert len(waiting) > 50
    await producer.stop()
    async with asyncio.timeout(LIMIT_S / 6):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {ProducerClosed}


async def test_a_broker_that_lost_its_log(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """If a broker comes back with an empty log and the topic is created again, the reader continues at offset 0."""
    first = Broker("embedded", tmp_path_factory.mktemp("first") / "data")
    first.start()
    settings = BusSettings(bootstrap=first.address)
    topic = copy_of(STREAMS, "lost")
    await ensure_topics(settings, [topic])
    got = RecordCollector()
    tail, producer = TailReader(settings, handler=got), Producer(settings, role=any_role(), name="test")
    second = Broker("embedded", tmp_path_factory.mktemp("second") / "data", first.port)
    request_id = request_in(0)
    try:
        await producer.start()
        async with running_readers(tail):
            await tail.follow(topic, 0, "end")
            for seq in range(5):
                await producer.send(topic, chunk(request_id, seq))
            await got.until_count(5)
            await asyncio.to_thread(first.stop)
            await asyncio.to_thread(second.start)
            await ensure_topics(settings, [topic])
            async with asyncio.timeout(LONG_S):
                positions = [await producer.send(topic, chunk(request_id, seq)) for seq in range(5, 8)]
            await got.until_count(8)
        await producer.stop()
    finally:
        for broker in (first, second):
            if broker.is_running():
                broker.kill()
    assert [position.offset for position in positions] == [0, 1, 2]
    assert got.seqs == list(range(8))
    assert said(caplog, f"{topic.name}[0]: offset 5 is gone; reading on at 0")


async def test_a_worker_outlives_a_broker_that_is_killed(
    own_embedded_broker: Broker, own: BusSettings, log: Topic
) -> None:
    got = RecordCollector()
    held: list[object] = []
    async with running_readers(GroupReader(own, topics=[log], group="workers", handler=got, on_assigned=held.append)):
        await until(lambda: bool(held))
        own_embedded_broker.kill()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_embedded_broker.start)
        await ensure_topics(own, [log])
        producer = Producer(own, role=any_role(), name="test")
        await producer.start()
        await producer.send(log, closed(request_in(0)))
        await producer.stop()
        await got.until(lambda: bool(got.records))


async def test_the_wrong_security_protocol_is_suspected(
    settings: BusSettings, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(ensure_topics(dataclasses.replace(settings, security_protocol="SSL")))
    await until(lambda: bool(said(caplog, "is RAILBUS_KAFKA_SECURITY_PROTOCOL right?")))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await ensure_topics(settings)
