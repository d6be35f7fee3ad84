"""Test the delivery of one answer to one client, and the hub that passes each event to its request's streams."""

import asyncio

import pytest

from schemas.ids import uuid7
from schemas.requests import Deadlines, Message, Request
from schemas.wire import KIND_HEADER
from services.bus import Received, UnreadableRecord
from services.edge.delivery import subscription
from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.held_events import MAX_HELD_EVENTS
from services.edge.delivery.hub import Hub
from services.edge.delivery.session import DeliverySession
from services.edge.delivery.subscription import ClientConnection, OpenRequest, Subscription
from services.edge.encoders.chat_chunks import ChatChunkEncoder
from services.edge.encoders.sse import SSE_KEEPALIVE, SseEncoder
from services.edge.errors import ApiError
from services.edge.http.responses import LAST_CHUNK, http_chunk
from services.edge.log.positions import LoggedEvent, OpId
from services.edge.log.request_index import EventSpan
from services.runtime.clock import now_us
from services.stream import AS_STARTED
from tests.support.edge_answers import AnswerWriter, ClientScreen, plain_answer, sse_events

ID = uuid7(1_763_700_000_000, 7)
OTHER = uuid7(1_763_700_000_000, 8)


class Wire(asyncio.WriteTransport):
    """A simulated connection. ``unread`` is the number of bytes that the client must still read. Tests set it to 0."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.unread = 0
        self.closing = False

    def write(self, data):
        self.writes.append(bytes(data))
        self.unread += len(data)

    def get_write_buffer_size(self):
        return self.unread

    def is_closing(self):
        return self.closing

    @property
    def data(self):
        return b"".join(self.writes)


class Broken(SseEncoder):
    def encode(self, sent):
        raise RuntimeError("a fault")


def visible(wire):
    screen = ClientScreen()
    for event in sse_events(wire.data):
        screen.take(event)
    return screen.visible


def stream_of(hub, *, request_id=ID, catching_up=False, total_ms=60_000, until_closed=True, ended=None, at_us=None,
              detached=None, lane="interactive"):  # fmt: skip
    request = Request(
        request_id=request_id, tenant="t", at=at_us or now_us(), source="edge/1", lane=lane,
        messages=(Message(role="user", content="hi"),), deadlines=Deadlines(total_ms=total_ms),
    )  # fmt: skip

    def on_end(stream):
        hub.remove(stream)
        if ended is not None:
            ended.append(stream.reason)

    stream = Subscription(
        request=OpenRequest.of(request), session=DeliverySession(request_id, 1, AS_STARTED), encoder=SseEncoder(),
        connection=ClientConnection(name="c", transport="sse", until_closed=until_closed), catching_up=catching_up,
        on_end=on_end, on_detached=lambda stream: None if detached is None else detached.append(stream.reason),
    )  # fmt: skip
    hub.add(stream)
    return stream


def records(events, first=0):
    return [Received("railbus.streams", 1, first + nth, 0, event, None) for nth, event in enumerate(events)]


async def test_a_batch_is_one_write():
    hub, wire = Hub(), Wire()
    stream_of(hub).attach(ClientWriter(wire, 10_000))
    hub.handle(records(plain_answer(ID, ["a", "b", "c"])))
    assert len(wire.writes) == 1
    assert visible(wire) == "abc"
    assert len(hub) == 0


async def test_each_stream_gets_the_events_of_its_request():
    hub, wires = Hub(), [Wire(), Wire(), Wire()]
    for wire, request_id in zip(wires, (ID, OTHER, ID), strict=True):
        stream_of(hub, request_id=request_id).attach(ClientWriter(wire, 10_000))
    first, second = plain_answer(ID, ["a", "b"]), plain_answer(OTHER, ["x", "y"])
    hub.handle(records([event for pair in zip(first, second, strict=True) for event in pair]))
    assert [visible(wire) for wire in wires] == ["ab", "xy", "ab"]


async def test_the_hub_wants_only_records_of_open_streams():
    hub = Hub()
    stream = stream_of(hub)
    assert hub.wants("Chunk", ID.encode())
    assert not hub.wants("Chunk", OTHER.encode())
    assert not hub.wants("Chunk", None)
    assert not hub.wants("Request", ID.encode())
    stream.end("gone")
    assert not hub.wants("Chunk", ID.encode())


async def test_framing_is_put_around_a_write():
    hub, wire = Hub(), Wire()
    stream_of(hub).attach(ClientWriter(wire, 10_000, http_chunk))
    writer = AnswerWriter(ID)
    hub.handle(records([writer.started()]))
    size, rest = wire.data.split(b"\r\n", 1)
    assert len(rest) == int(size, 16) + 2


async def test_the_last_write_ends_the_body():
    hub, wire = Hub(), Wire()
    stream_of(hub).attach(ClientWriter(wire, 10_000, http_chunk, terminator=LAST_CHUNK))
    *events, last = plain_answer(ID, ["a", "b"])
    hub.handle(records(events))
    assert not wire.data.endswith(LAST_CHUNK)
    hub.handle(records([last], len(events)))
    assert len(wire.writes) == 2
    assert wire.writes[1].endswith(LAST_CHUNK)
    assert wire.data.count(LAST_CHUNK) == 1


async def test_an_answer_that_was_complete_before_ends_the_body():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    stream.attach(ClientWriter(wire, 10_000, http_chunk, terminator=LAST_CHUNK))
    assert len(wire.writes) == 1
    assert wire.data.endswith(LAST_CHUNK)


async def test_a_body_that_breaks_off_has_no_end():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    stream.attach(ClientWriter(wire, 10_000, http_chunk, terminator=LAST_CHUNK))
    hub.handle(records([AnswerWriter(ID).started()]))
    stream.end("gone")
    assert LAST_CHUNK not in wire.data


async def test_a_slow_client_is_dropped_with_a_reason():
    hub, wire, ended = Hub(), Wire(), []
    stream_of(hub, ended=ended).attach(ClientWriter(wire, 100))
    writer = AnswerWriter(ID)
    hub.handle(records([writer.started()]))
    hub.handle(records([writer.chunk("x" * 200)], 1))
    assert ended == []
    hub.handle(records([writer.chunk("y")], 2))
    assert ended == ["slow"]
    assert b'"slow_client"' in wire.writes[-1]
    assert b'"text":"y"' in wire.writes[-2]
    count = len(wire.writes)
    hub.handle(records([writer.chunk("z")], 3))
    assert len(wire.writes) == count


async def test_nothing_is_written_to_a_client_that_is_gone():
    hub, wire, ended = Hub(), Wire(), []
    stream_of(hub, ended=ended).attach(ClientWriter(wire, 100))
    wire.closing = True
    hub.handle(records([AnswerWriter(ID).started()]))
    assert (ended, wire.writes) == (["gone"], [])


async def test_an_answer_that_was_over_first_is_dated_when_it_is_written():
    hub, wire, ended, detached = Hub(), Wire(), [], []
    stream = stream_of(hub, ended=ended, detached=detached)
    hub.handle(records([AnswerWriter(ID).denied("No."), AnswerWriter(ID).closed("denied")]))
    over_us = stream.ended_us
    assert (ended, detached) == (["complete"], [])
    await asyncio.sleep(0.002)
    stream.attach(ClientWriter(wire, 10_000))
    assert detached == ["complete"]
    assert stream.ended_us >= over_us + 2_000
    stream.end("gone")
    assert (ended, detached, stream.reason) == (["complete"], ["complete"], "complete")


async def test_a_client_that_left_before_the_answer_was_written_is_gone():
    hub, ended, detached = Hub(), [], []
    stream = stream_of(hub, ended=ended, detached=detached)
    hub.handle(records([AnswerWriter(ID).denied("No."), AnswerWriter(ID).closed("denied")]))
    stream.end("gone")
    stream.end("gone")
    assert (ended, detached) == (["complete"], ["gone"])


async def test_events_before_the_connection_is_attached_wait():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    stream.attach(ClientWriter(wire, 10_000))
    assert visible(wire) == "ab"


class Recorder(DeliverySession):
    """A session that records the offsets of the events that it folds."""

    def __init__(self, request_id, partition):
        super().__init__(request_id, partition, AS_STARTED)
        self.folded = []

    def feed(self, logged):
        self.folded.append(logged.offset)
        return super().feed(logged)


async def test_the_history_is_sent_first_then_held_events_once():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub, catching_up=True)
    stream.session = Recorder(ID, 1)
    events = plain_answer(ID, ["a", "b", "c", "d"])
    history = [LoggedEvent(nth, event) for nth, event in enumerate(events[:3])]  # begin, a, b
    hub.handle(records(events[2:5], 2))  # b again, c, d: the live tail overlaps the history
    stream.attach(ClientWriter(wire, 10_000))
    assert wire.writes == []
    await stream.catch_up(stream.session.resume(history, None), 3)
    assert visible(wire) == "abcd"
    assert stream.session.folded == [3, 4]
    hub.handle(records(events[5:], 5))
    assert stream.reason == "complete"


async def test_a_long_history_waits_for_a_slow_reader():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub, catching_up=True)
    stream.attach(ClientWriter(wire, 1_000))
    events = plain_answer(ID, ["x" * 60_000] * 8)
    history = [LoggedEvent(nth, event) for nth, event in enumerate(events)]
    task = asyncio.create_task(stream.catch_up(stream.session.resume(history, None), len(events)))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert wire.unread < 140_000
    while not task.done():
        wire.unread = 0
        await asyncio.sleep(0.005)
    assert (stream.reason, len(visible(wire))) == ("complete", 480_000)


async def test_a_long_history_leaves_room_for_the_connections_other_streams():
    hub, wire, ended = Hub(), Wire(), []
    resumed, other = stream_of(hub, catching_up=True), stream_of(hub, request_id=OTHER, ended=ended)
    for stream in (resumed, other):
        stream.attach(ClientWriter(wire, 4_096))
    events, live = plain_answer(ID, ["x" * 50] * 200), records(plain_answer(OTHER, ["y"] * 1_000))
    caught_up = resumed.session.resume([LoggedEvent(nth, event) for nth, event in enumerate(events)], None)
    task = asyncio.create_task(resumed.catch_up(caught_up, len(events)))
    while not task.done():
        await asyncio.sleep(0.005)
        hub.handle([live.pop(0)])
        wire.unread = 0
    assert (resumed.reason, ended) == ("complete", [])


async def test_a_recall_shortens_an_unsent_history():
    """After the edge has read a recall, it sends no recalled text, even if it is already sending the history."""
    for sent_already in (False, True):
        hub, wire, writer = Hub(), Wire(), AnswerWriter(ID, checked=True)
        stream = stream_of(hub, catching_up=True)
        stream.attach(ClientWriter(wire, 1_000))
        head = [writer.started(), writer.allowed()]
        events = [*head, *(writer.chunk(f"SECRET{number} " + "x" * 60_000) for number in range(6))]
        caught_up = stream.session.resume([LoggedEvent(nth, event) for nth, event in enumerate(events)], None)
        if not sent_already:
            hub.handle(records([writer.chunk("SECRET6"), writer.recall(0, 6, "stop")], len(events)))
        task = asyncio.create_task(stream.catch_up(caught_up, len(events)))
        await asyncio.sleep(0.02)
        assert task.done() is not sent_already
        begun = len(wire.data)
        if sent_already:
            hub.handle(records([writer.chunk("SECRET6"), writer.recall(0, 6, "stop")], len(events)))
        while not task.done():
            wire.unread = 0
            await asyncio.sleep(0.005)
        assert b"SECRET" not in wire.data[begun if sent_already else 0 :]
        assert (b"SECRET" in wire.data) is sent_already
        assert visible(wire) == "[gone]"
        hub.handle(records([writer.closed("recalled")], len(events) + 2))
        assert stream.reason == "complete"


async def test_a_redaction_shortens_only_its_span():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID, checked=True)
    stream = stream_of(hub, catching_up=True)
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.allowed(), writer.chunk("my SECRET is"), writer.chunk(" told")]
    caught_up = stream.session.resume([LoggedEvent(nth, event) for nth, event in enumerate(events)], None)
    hub.handle(records([writer.recall(3, 9), writer.chunk(" and on")], len(events)))
    await stream.catch_up(caught_up, len(events))
    assert b"SECRET" not in wire.data
    assert visible(wire) == "my [gone] is told and on"


async def test_a_history_that_is_shortened_twice_still_arrives_together():
    """If a history was shortened twice, all its ops are still sent in one message.

    A history is shortened by leaving out text that a later op takes back. All ops of a shortened history have the same
    position, so a client that got only some of them could not resume.
    """
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID, checked=True)
    stream = stream_of(hub, catching_up=True)
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.allowed(), writer.chunk("SECRET"), writer.recall(0, 6, "stop")]
    events.append(writer.closed("recalled"))
    caught_up = stream.session.resume([LoggedEvent(nth, event) for nth, event in enumerate(events)], None)
    assert not caught_up.splittable
    hub.handle(records(events[2:], 2))  # an edge that lags reads the recall again while the history waits
    await stream.catch_up(caught_up, len(events))
    ids = [event["id"] for event in sse_events(wire.data) if "id" in event]
    assert len(ids) == len(set(ids)) == 1
    assert visible(wire) == "[gone]"
    assert stream.reason == "complete"


async def test_too_many_held_events_end_the_stream():
    hub, ended = Hub(), []
    stream = stream_of(hub, catching_up=True, ended=ended)
    event = LoggedEvent(1, AnswerWriter(ID).started())
    for _ in range(MAX_HELD_EVENTS + 1):
        stream.push(event, 0)
    assert ended == ["slow"]


async def test_a_stream_without_a_close_expires():
    hub, wire, ended = Hub(), Wire(), []
    stream = stream_of(hub, total_ms=1_000, ended=ended)
    stream.attach(ClientWriter(wire, 10_000))
    hub.tick(stream.opened_us + 2_999_999)
    assert ended == []
    hub.tick(stream.opened_us + 3_000_000)
    assert ended == ["error"]
    assert b'"expired"' in wire.data


async def test_a_request_of_an_edge_whose_clock_is_behind_does_not_expire_early():
    hub, ended = Hub(), []
    stream = stream_of(hub, at_us=now_us() - 61_000_000, ended=ended)
    hub.tick(stream.opened_us + 61_999_999)
    assert ended == []


async def test_a_stream_does_not_expire_before_its_history_is_sent():
    hub = Hub()
    stream = stream_of(hub, catching_up=True, total_ms=1)
    hub.tick(stream.request.at + 10**9)
    assert stream.reason is None
    stream.attach(ClientWriter(Wire(), 10_000))
    await stream.catch_up(stream.session.resume([], None), 0)
    hub.tick(stream.request.at + 10**9)
    assert stream.reason == "error"


async def test_a_keep_alive_comes_when_the_stream_was_quiet_for_its_time(monkeypatch):
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    begin_s = now_s = stream.opened_us / 1e6
    written, kept_alive = [], []
    events = records(plain_answer(ID, ("a", "b")))
    monkeypatch.setattr(subscription, "steady_us", lambda: int(now_s * 1e6))

    async def wait(event, seconds):
        nonlocal now_s
        ends_s = now_s + seconds
        for at_s in (begin_s + 1, begin_s + 29):
            if now_s <= at_s <= ends_s:
                now_s = at_s
                hub.handle([events[len(written)]])
                written.append(now_s)
        now_s = ends_s
        return len(kept_alive) > 2

    class Timed(ClientWriter):
        def write(self, data, *, last=False):
            if data == SSE_KEEPALIVE:
                kept_alive.append(now_s)
            return super().write(data, last=last)

    monkeypatch.setattr(subscription, "is_set_within", wait)
    await stream.serve(Timed(wire, 10_000), SSE_KEEPALIVE)
    assert [round(at_s - begin_s) for at_s in written] == [1, 29]
    assert [round(at_s - begin_s) for at_s in kept_alive] == [16, 44, 59]


async def test_a_stream_ends_once():
    hub, wire, ended = Hub(), Wire(), []
    stream = stream_of(hub, ended=ended)
    stream.attach(ClientWriter(wire, 10_000))
    stream.end("error", ApiError(500, "first", code="first"))
    stream.end("error", ApiError(500, "second", code="second"))
    assert ended == ["error"]
    assert b"first" in wire.data
    assert b"second" not in wire.data


async def test_one_broken_stream_does_not_break_the_others(caplog):
    hub, wires, ended = Hub(), [Wire(), Wire()], []
    broken = stream_of(hub, ended=ended)
    broken.encoder = Broken()
    for stream, wire in zip((broken, stream_of(hub)), wires, strict=True):
        stream.attach(ClientWriter(wire, 10_000))
    hub.handle(records(plain_answer(ID, ["a"])))
    assert visible(wires[1]) == "a"
    assert ended == ["error"]
    assert "cannot follow" in caplog.text


async def test_stopping_waits_then_ends_all_streams():
    hub, wire, ended = Hub(), Wire(), []
    stream_of(hub, ended=ended).attach(ClientWriter(wire, 10_000))
    await hub.stop(0)
    assert ended == ["shutdown"]
    assert b"server_stopping" in wire.data
    await hub.stop(10_000)  # nothing is open: no wait


def unreadable(kind, offset, request_id=ID):
    headers = ((KIND_HEADER, kind.encode()),)
    return UnreadableRecord("railbus.streams", 1, offset, 0, request_id.encode(), b"", headers, error="newer")


async def test_text_that_waits_for_its_client_is_not_sent_after_a_newer_recall():
    hub, wire, ended = Hub(), Wire(), []
    stream = stream_of(hub, ended=ended)
    writer = AnswerWriter(ID)
    hub.handle(records([writer.started(), writer.chunk("SECRET")]))
    hub.handle([unreadable("Recall", 2)])
    stream.attach(ClientWriter(wire, 10_000))
    assert ended == ["error"]
    assert b"SECRET" not in wire.data


@pytest.mark.parametrize(("kind", "ends"), [("Recall", 1), ("Verdict", 1), ("Cutover", 1), ("Chunk", 0)])
async def test_only_a_newer_event_that_may_take_text_back_ends_a_stream(kind, ends):
    hub, ended = Hub(), []
    stream_of(hub, ended=ended).attach(ClientWriter(Wire(), 10_000))
    hub.index.follow(ID.encode(), 1, whole=True)
    hub.handle(records([AnswerWriter(ID).started()], 5))
    hub.handle([unreadable(kind, 9)])
    assert len(ended) == ends
    assert hub.index.span(ID.encode()) == EventSpan(5, 10 if ends else 6), "a look-up must meet it too"


async def test_a_chat_stream_that_comes_back_before_a_restart_ends_with_it():
    hub, wire, writer = Hub(), Wire(), AnswerWriter(ID)
    stream = stream_of(hub, catching_up=True, until_closed=False)
    stream.encoder = ChatChunkEncoder(stream.session, "m", include_usage=False, on_restart="error")
    stream.attach(ClientWriter(wire, 10_000))
    events = [writer.started(), writer.chunk("a"), writer.cutover(), writer.started(), writer.chunk("other")]
    history = [LoggedEvent(nth, event) for nth, event in enumerate(events)]
    caught_up = stream.session.resume(history, OpId(1, 1, 0))
    assert caught_up.splittable
    await stream.catch_up(caught_up, len(events))
    assert stream.reason == "error"
    assert b"restarted" in wire.data
    assert b"other" not in wire.data
