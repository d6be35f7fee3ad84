"""Test the receipts that the edge writes about a stream, and its metric of the time to first token."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.hub import Hub
from services.edge.delivery.receipts import ReceiptWriter
from services.edge.encoders.completion import CompletionEncoder
from services.edge.log.positions import OpId
from tests.support.edge_answers import AnswerWriter, plain_answer
from tests.support.waiting import until
from tests.unit.edge.test_subscription import ID, Wire, records, stream_of


class Producer:
    def __init__(self):
        self.posted = []

    def post_now(self, topic, event):
        self.posted.append(event)
        return topic, event


@pytest.mark.parametrize(("lane", "observed"), [("interactive", 1), ("batch", 0)])
async def test_a_first_text_for_which_nobody_waits_is_counted_apart(lane, observed):
    """The metric of the time to first token leaves out batch requests, which may wait for a day.

    Otherwise a late first token of a batch request could raise an alert.
    """

    def count():
        return REGISTRY.get_sample_value("railbus_edge_ttft_ms_count")

    hub, receipts, before = Hub(), ReceiptWriter(Producer(), "edge/1"), count()
    stream = stream_of(hub, lane=lane)
    receipts.record_attached(stream)
    stream.attach(ClientWriter(Wire(), 10_000))
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    receipts.record_detached(stream)
    assert count() - before == observed


async def test_the_receipt_of_a_completion_counts_all_its_ops():
    hub, producer = Hub(), Producer()
    receipts, stream = ReceiptWriter(producer, "edge/1"), stream_of(hub, until_closed=False)
    stream.encoder = CompletionEncoder(stream.session, "m")
    receipts.record_attached(stream)
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    stream.written_whole()
    receipts.record_detached(stream)
    _, detached = producer.posted
    assert (detached.reason, detached.ops, detached.last) == ("complete", 4, "1:3:0")  # begin, two texts, finish
    assert detached.first_text_ms is not None


@pytest.mark.parametrize("ends", [True, False])
async def test_a_client_that_does_not_stream_saw_no_recalled_text(ends):
    hub, producer, writer = Hub(), Producer(), AnswerWriter(ID, checked=True)
    receipts, stream = ReceiptWriter(producer, "edge/1"), stream_of(hub, until_closed=False)
    stream.encoder = CompletionEncoder(stream.session, "m")
    receipts.record_attached(stream)
    events = [writer.started(), writer.allowed(), writer.chunk("my "), writer.chunk("SECRET", tokens=3)]
    hub.handle(records([*events, writer.recall(3, 9)]))
    if ends:
        hub.handle(records([writer.finished(), writer.cleared()], len(events) + 1))
        assert b"my [gone]" in stream.encoder.encode_end()
        stream.written_whole()
    else:
        stream.end("gone")
    receipts.record_detached(stream)
    _, detached = producer.posted
    assert detached.ops == (5 if ends else 0)
    assert (detached.exposed_tokens, detached.exposure_ms, detached.recalled_tokens) == (0, 0, 0)


async def test_one_receipt_and_no_first_text_for_a_resumed_stream():
    def count():
        return REGISTRY.get_sample_value("railbus_edge_ttft_ms_count")

    hub, producer, before = Hub(), Producer(), count()
    receipts, stream = ReceiptWriter(producer, "edge/1"), stream_of(hub)
    stream.connection = replace(stream.connection, resumed_from=OpId(1, 0, 0))
    receipts.record_attached(stream)
    stream.attach(ClientWriter(Wire(), 10_000))
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    for _ in range(2):
        receipts.record_detached(stream)
    assert [type(each).__name__ for each in producer.posted] == ["Attached", "Detached"]
    assert count() == before


async def test_receipts_that_wait_for_the_log_keep_their_order():
    class Full(Producer):
        is_full = True

        def post_now(self, topic, event):
            return None if self.is_full else super().post_now(topic, event)

        async def post(self, topic, event):
            await room.wait()
            return super().post_now(topic, event)

    room, producer = asyncio.Event(), Full()
    receipts, streams = ReceiptWriter(producer, "edge/1"), [stream_of(Hub()) for _ in range(4)]
    for nth, stream in enumerate(streams):
        stream.connection = replace(stream.connection, name=f"c{nth}")
    receipts.record_attached(streams[0])
    receipts.record_attached(streams[1])
    producer.is_full = False
    receipts.record_attached(streams[2])  # others wait, so this one does too
    running = asyncio.create_task(receipts.run())
    room.set()
    await until(lambda: len(producer.posted) == 3)
    room.clear()
    producer.is_full = True
    receipts.record_detached(streams[0])
    await asyncio.sleep(0)
    producer.is_full = False
    receipts.record_detached(streams[1])  # the first is being written, and none waits
    room.set()
    await until(lambda: len(producer.posted) == 5)
    running.cancel()
    assert [each.connection for each in producer.posted] == ["c0", "c1", "c2", "c0", "c1"]
