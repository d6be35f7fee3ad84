import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError
from aiokafka.producer.sender import SendProduceReqHandler

from schemas.errors import MalformedEvent
from schemas.ids import uuid7
from schemas.requests import Message, Request
from schemas.stream import Chunk, Verdict
from schemas.topics import DEAD, REQUESTS, STREAMS, Topic
from services.bus import (
    BusSettings,
    EventRejected,
    Producer,
    ProducerClosed,
    Received,
    TailReader,
    ensure_topics,
    partition_for,
)
from services.runtime.errors import UserError
from services.runtime.metrics import UNACKED
from tests.integration.bus.lab import LIMIT_S, RecordCollector, chunk, closed, request_in, running_readers
from tests.support.bus import any_role, copy_of

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_an_event_stands_where_its_request_belongs(
    settings: BusSettings, producer: Producer, topic: Topic
) -> None:
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    events = [closed(request_in(partition)) for partition in range(4)]
    async with running_readers(reader):
        for partition in range(4):
            await reader.follow(topic, partition, "end")
        positions = [await producer.send(topic, event, traceparent=TRACE) for event in events]
        await got.until_count(4)
    assert [position.partition for position in positions] == [partition_for(e.request_id, 4) for e in events]
    found = {(r.partition, r.offset): r for r in got.records if isinstance(r, Received)}
    assert [found[position].event for position in positions] == events
    assert {r.traceparent for r in found.values()} == {TRACE}
    assert {r.topic for r in found.values()} == {topic.name}


async def test_posts_keep_their_order_whatever_lingers(settings: BusSettings, producer: Producer, topic: Topic) -> None:
    requests = [request_in(1) for _ in range(3)]
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    posted = []
    async with running_readers(reader):
        await reader.follow(topic, 1, "end")
        for seq, request_id in itertools.product(range(40), requests):
            event = closed(request_id) if seq == 39 else chunk(request_id, seq)
            posted.append(event)
            await producer.post(topic, event)
            if seq % 7 == 0:
                await asyncio.sleep(0.003)
        await got.until_count(len(posted))
    for request_id in requests:
        read = [r.event for r in got.records if isinstance(r, Received)]
        assert [e for e in read if e.request_id == request_id] == [e for e in posted if e.request_id == request_id]
    assert len(got.records) == len(posted)


async def test_only_later_chunks_linger_and_anything_else_takes_them_along(settings: BusSettings, topic: Topic) -> None:
    producer = Producer(BusSettings(bootstrap=settings.bootstrap, linger_ms=600_000), role=any_role(), name="slow")
    await producer.start()
    try:
        first, second = request_in(0), request_in(0)
        async with asyncio.timeout(LIMIT_S):
            await producer.send(topic, chunk(first, 0))
        later = await producer.post(topic, chunk(first, 1))
        await asyncio.sleep(0.3)
        assert not later.done()
        async with asyncio.timeout(LIMIT_S):
            position = await producer.send(topic, chunk(second, 0))
            assert (await later).offset == position.offset - 1
    finally:
        await producer.stop()


async def test_stopping_sends_what_lingers(settings: BusSettings, topic: Topic) -> None:
    producer = Producer(BusSettings(bootstrap=settings.bootstrap, linger_ms=600_000), role=any_role(), name="slow")
    await producer.start()
    futures = [await producer.post(topic, chunk(request_in(2), 5)) for _ in range(10)]
    await producer.stop()
    assert sorted(future.result().offset for future in futures) == list(range(10))


async def test_nothing_counts_as_unacknowledged_once_all_is(producer: Producer, topic: Topic) -> None:
    await producer.send(topic, closed(request_in(0)))
    assert UNACKED._value.get() == 0


async def test_an_event_of_nearly_a_million_bytes(settings: BusSettings, topic: Topic) -> None:
    producer = Producer(settings, role={topic.name: frozenset({Chunk, Request})}, name="test")
    await producer.start()
    got = RecordCollector()
    reader = TailReader(settings, handler=got)
    request_id = request_in(0)
    big = Request(
        request_id=request_id, tenant="t", at=1, source="test", model="m",
        messages=(Message(role="user", content="x" * 249_500),) * 4,
    )  # fmt: skip
    async with running_readers(reader):
        await reader.follow(topic, 0, "end")
        await producer.post(topic, chunk(request_id, 0))
        for _ in range(3):
            await producer.send(topic, big)
        await got.until_count(4)
    await producer.stop()
    assert [r.event for r in got.records if isinstance(r, Received)][1:] == [big] * 3


async def test_an_event_that_is_too_large_is_refused_at_once(producer: Producer, topic: Topic) -> None:
    with pytest.raises(MalformedEvent, match="the limit is 1000000"):
        await producer.post(topic, chunk(request_in(0), 0, "x" * 1_000_001))
    await producer.send(topic, closed(request_in(0)))


async def test_what_nobody_may_write_on_a_topic_is_refused(producer: Producer) -> None:
    with pytest.raises(TypeError, match=r"may not write Closed on railbus\.requests"):
        await producer.post(REQUESTS, closed(uuid7(1, 1)))
    with pytest.raises(TypeError, match=r"may not write Closed on railbus\.dead"):
        await producer.post(DEAD, closed(uuid7(1, 1)))


async def test_what_another_role_writes_is_refused(settings: BusSettings) -> None:
    await ensure_topics(settings, [STREAMS])
    request_id = request_in(0)
    producer = Producer(settings, role="rails")
    await producer.start()
    try:
        with pytest.raises(TypeError, match=r"rails may not write Closed on railbus\.streams: see schemas\.registry"):
            await producer.post(STREAMS, closed(request_id))
        with pytest.raises(TypeError, match=r"rails may not write Chunk on railbus\.streams"):
            await producer.post(STREAMS, chunk(request_id, 0))
        about = {"request_id": request_id, "tenant": "t", "at": 1, "source": "rails/1"}
        await producer.send(STREAMS, Verdict(**about, decision="allow", policy_version="p"))
    finally:
        await producer.stop()


async def test_a_producer_that_does_not_run_says_so(settings: BusSettings, topic: Topic) -> None:
    producer = Producer(settings, role=any_role(), name="test")
    with pytest.raises(ProducerClosed, match="not started"):
        await producer.post(topic, closed(request_in(0)))
    await producer.start()
    await producer.stop()
    await producer.stop()
    with pytest.raises(ProducerClosed, match="stopped"):
        await producer.post(topic, closed(request_in(0)))


async def test_what_the_broker_refuses_for_good_is_told_and_the_rest_goes_on(
    settings: BusSettings, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    small = copy_of(STREAMS, "small")
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(small.name, 4, 1, topic_configs={"max.message.bytes": "2000"})])
    finally:
        await admin.close()
    first, second = request_in(0), request_in(1)
    posted = [
        await producer.post(small, event)
        for event in (closed(first), chunk(first, 0, "x" * 5_000), closed(second), chunk(second, 0))
    ]
    results = await asyncio.gather(*posted, return_exceptions=True)
    assert [isinstance(result, EventRejected) for result in results] == [False, True, False, False]
    assert (await producer.send(small, closed(first))).partition == 0
    assert any("refuses" in message and "for good" in message for message in caplog.messages)


async def test_a_record_that_the_broker_finds_invalid_is_refused_alone(
    producer: Producer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker refuses one record with the error INVALID_RECORD (code 87), only this event is rejected.

    aiokafka has no name for this error code.
    """
    handle = SendProduceReqHandler.handle_response

    def check(self: Any, answer: Any) -> None:
        invalid = any(b"invalid" in batch.get_data_buffer() for batch in self._batches.values())
        topics = [
            (name, [(part, 87 if invalid and not code else code, *rest) for part, code, *rest in parts])
            for name, parts in answer.topics
        ]
        handle(self, SimpleNamespace(API_VERSION=answer.API_VERSION, topics=topics))

    monkeypatch.setattr(SendProduceReqHandler, "handle_response", check)
    request_id = request_in(0)
    async with asyncio.timeout(30):
        posted = [
            await producer.post(topic, event)
            for event in (closed(request_id), closed(request_id, "invalid"), closed(request_id))
        ]
        results = await asyncio.gather(*posted, return_exceptions=True)
        assert [isinstance(result, EventRejected) for result in results] == [False, True, False]
        assert (await producer.send(topic, closed(request_id))).partition == 0


async def test_a_topic_that_the_user_may_not_see_is_refused(
    producer: Producer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the user may not see a topic, only the events for this topic are rejected.

    With Apache Kafka, aiokafka raises an error for such a topic. Here the test raises this error.
    """
    hidden = copy_of(STREAMS, "hidden")
    send_batch = AIOKafkaProducer.send_batch

    async def see_or_raise(self: object, batch: object, name: str, *, partition: int) -> object:
        if name == hidden.name:
            raise TopicAuthorizationFailedError(name)
        return await send_batch(self, batch, name, partition=partition)

    monkeypatch.setattr(AIOKafkaProducer, "send_batch", see_or_raise)
    request_id = request_in(0)
    async with asyncio.timeout(LIMIT_S):
        posted = [
            await producer.post(where, event)
            for where, event in (
                (hidden, closed(request_id)),
                (topic, closed(request_id)),
                (hidden, closed(request_id)),
            )
        ]
        results = await asyncio.gather(*posted, return_exceptions=True)
        assert [isinstance(result, EventRejected) for result in results] == [True, False, True]
        assert (await producer.send(topic, closed(request_id))).offset == 1


async def test_a_user_who_may_write_nothing_is_told(settings: BusSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer whose user may write nothing fails with a clear error. Apache Kafka gives this user no producer id."""

    async def refuse(_: object) -> None:
        raise ClusterAuthorizationFailedError

    monkeypatch.setattr(AIOKafkaProducer, "start", refuse)
    async with asyncio.timeout(LIMIT_S / 6):
        with pytest.raises(UserError, match="does not let this user write"):
            await Producer(settings, role=any_role(), name="test").start()
