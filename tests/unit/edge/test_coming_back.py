"""Test that a client that resumes gets the text that it missed, even if a recall, restart or error comes meanwhile."""

import asyncio
from types import SimpleNamespace

import orjson
from aiohttp import HttpVersion11

from schemas.topics import STREAMS
from services.bus import Received
from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.hub import Hub
from services.edge.encoders.chat_chunks import ChatChunkEncoder
from services.edge.http import responses
from services.edge.log.positions import LoggedEvent, OpId
from tests.support.edge_answers import AnswerWriter, sse_events
from tests.unit.edge.test_subscription import ID, Wire, records, stream_of, visible


def chat(stream):
    stream.encoder = ChatChunkEncoder(stream.session, "m", include_usage=False, on_restart="error")
    return stream


def text_of(wire):
    chunks = [orjson.loads(event["data"]) for event in sse_events(wire.data)]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if "choices" in chunk)


def history_of(events):
    return [LoggedEvent(nth, event, 1_000 + nth) for nth, event in enumerate(events)]


async def test_a_chat_stream_that_comes_back_after_a_restart_goes_on():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID)
    stream = chat(stream_of(hub, catching_up=True, until_closed=False))
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.chunk("a"), writer.cutover(), writer.started()]
    events += [writer.chunk("one "), writer.chunk("two")]
    await stream.catch_up(stream.session.resume(history_of(events), OpId(1, 4, 0)), len(events))
    assert stream.reason is None
    assert text_of(wire) == "two"


async def test_no_text_of_the_next_attempt_is_appended_before_the_error():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID)
    stream = chat(stream_of(hub, catching_up=True, until_closed=False))
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.chunk("a"), writer.chunk("b"), writer.cutover(), writer.started()]
    events += [writer.chunk("other")]
    await stream.catch_up(stream.session.resume(history_of(events), OpId(1, 1, 0)), len(events))
    assert stream.reason == "error"
    assert b"other" not in wire.data


async def test_an_error_at_the_end_of_the_first_wait_is_the_response(monkeypatch):
    hub, wire = Hub(), Wire()
    wire.set_write_buffer_limits = lambda **_: None
    wire.get_write_buffer_size = lambda: 0
    stream = chat(stream_of(hub, until_closed=False))

    async def just_late(_event, _seconds):
        hub.handle(records([AnswerWriter(ID).closed("failed")]))  # read after the time was up, before this task runs
        return False

    monkeypatch.setattr(responses, "is_set_within", just_late)
    request = SimpleNamespace(transport=wire, version=HttpVersion11, keep_alive=True)
    response = await responses.send_stream(request, stream, buffer_bytes=10_000, headers={})
    assert (response.status, wire.data) == (502, b"")


async def test_a_recall_before_the_history_is_sent_counts_no_text_twice():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID, checked=True)
    stream = chat(stream_of(hub, catching_up=True, until_closed=False))
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.allowed(), writer.chunk("my SECRET1 "), writer.recall(3, 10)]
    events += [writer.chunk("and SECRET2")]
    caught_up = stream.session.resume(history_of(events), None)
    hub.handle(records([writer.recall(15, 22)], len(events)))
    await stream.catch_up(caught_up, len(events))
    assert text_of(wire) == "my [gone] and [gone]"
    assert b'"role":"assistant"' in wire.data


async def test_a_recall_at_an_offset_that_the_broker_assigned_again_counts():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID, checked=True)
    stream = stream_of(hub, catching_up=True)
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.allowed(), writer.chunk("SECRET"), writer.chunk(" lost")]
    caught_up = stream.session.resume(history_of(events), None)
    recall = writer.recall(0, 6, "stop")  # the broker lost the last record, and the recall has its offset now
    hub.handle([Received(STREAMS.name, 1, 3, 9_000, recall, None)])
    await stream.catch_up(caught_up, len(events))
    assert b"SECRET" not in wire.data
    assert visible(wire) == "[gone]"


async def test_a_history_waits_until_the_connection_has_room():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID)
    stream = chat(stream_of(hub, catching_up=True, until_closed=False))
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.chunk("a")]
    wire.unread = 10_001  # another stream of the same websocket has just sent its history
    sending = asyncio.create_task(stream.catch_up(stream.session.resume(history_of(events), None), len(events)))
    await asyncio.sleep(0.05)
    assert not wire.data
    wire.unread = 0
    await sending
    assert text_of(wire) == "a"
