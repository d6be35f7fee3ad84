"""Test that a client that resumes at any op gets the rest of the uninterrupted stream, but no recalled text."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.stream import Chunk
from services.edge.delivery.session import DeliverySession
from services.edge.encoders.chat_chunks import DONE_EVENT, ChatChunkEncoder
from services.edge.encoders.sse import SseEncoder
from services.edge.encoders.websocket import WebSocketEncoder
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent, OpId
from services.stream import AS_STARTED, Refuse, Replace, Restart, Screen, Show, Withdraw
from tests.support.edge_answers import ClientScreen, plain_answer, sse_events
from tests.unit.stream.histories import REQUEST_ID, grow

PARTITION = 3
HISTORIES = st.binary(min_size=40, max_size=260).map(grow)


def logged(events):
    return [LoggedEvent(100 + 7 * place, event) for place, event in enumerate(events)]


def writers(session):
    return {
        "ops": SseEncoder(),
        "frames": WebSocketEncoder(session),
        "chat": ChatChunkEncoder(session, "m", include_usage=True, on_restart="marker"),
    }


def uncut(history, kind):
    """Encode every op in order. Return a list of (op id, bytes), and the bytes that end the stream."""
    session = DeliverySession(history[0].event.request_id, PARTITION, AS_STARTED)
    writer = writers(session)[kind]
    pieces = [(sent.op_id, writer.encode(sent)) for entry in history for sent in session.feed(entry)]
    return pieces, writer.encode_end()


def resumed(history, kind, after, split):
    """Return the bytes that a client gets if it resumes after the op with the id ``after``.

    ``split`` is the number of events that are already on the log when the client resumes.
    """
    session = DeliverySession(history[0].event.request_id, PARTITION, AS_STARTED)
    writer = writers(session)[kind]
    data = [piece for _, piece in writer.catch_up(session.resume(history[:split], after))]
    data += [writer.encode(sent) for entry in history[split:] for sent in session.feed(entry)]
    return b"".join([*data, writer.encode_end()])


@pytest.mark.parametrize("kind", ["ops", "frames", "chat"])
def test_after_a_cut_at_any_op_the_rest_is_the_same_bytes(kind):
    texts = ["Hel", "lo ", "\u00e9\u4e16\U0001f600", "\n\n", '"quoted"']
    history = logged(plain_answer(REQUEST_ID, texts, checked=True))
    pieces, tail = uncut(history, kind)
    assert len(pieces) > 6
    for cut, (op_id, _) in enumerate(pieces):
        rest = b"".join(data for _, data in pieces[cut + 1 :]) + tail
        first = next(place for place, entry in enumerate(history) if entry.offset == op_id.offset) + 1
        for split in range(first, len(history) + 1):
            assert resumed(history, kind, op_id, split) == rest


@settings(deadline=None)
@given(HISTORIES, st.data())
def test_any_history_cut_anywhere_leads_to_the_same_screen(events, data):
    if not events:
        return
    history = logged(events)
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    steps = [(sent, entry) for entry in history for sent in session.feed(entry)]
    cut = data.draw(st.integers(0, len(steps)), label="ops the client has")
    had = steps[:cut]
    first = history.index(had[-1][1]) + 1 if had else 0
    split = data.draw(st.integers(first, len(history)), label="events on the log when it comes back")
    client = ClientScreen()
    for sent, _ in had:
        client.op(orjson.loads(sent.line))
    after = had[-1][0].op_id if had else None
    for event in sse_events(resumed(history, "ops", after, split)):
        client.take(event)
    assert client.visible == session.visible


@settings(deadline=None)
@given(HISTORIES, st.data())
def test_recalled_text_is_not_sent_to_a_late_client(events, data):
    if not events:
        return
    history = logged(events)
    split = data.draw(st.integers(0, len(history)), label="events on the log when it comes")
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    caught_up = session.resume(history[:split], None)
    screen = Screen(REQUEST_ID)
    for entry in history[:split]:
        screen.feed(entry.event)
    shown = "".join(sent.op.text for sent in caught_up.ops if isinstance(sent.op, Show | Replace | Withdraw))
    assert set(shown) - set("#<>0123456789refused") <= set(screen.visible)


@settings(deadline=None)
@given(HISTORIES)
def test_without_recalls_a_naive_client_shows_the_text(events):
    if not events:
        return
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    chat = ChatChunkEncoder(session, "m", include_usage=False, on_restart="error")
    text = ""
    for entry in logged(events):
        for sent in session.feed(entry):
            if isinstance(sent.op, Restart | Replace | Withdraw) or (isinstance(sent.op, Refuse) and text):
                return
            for event in sse_events(chat.encode(sent)):
                text += orjson.loads(event["data"])["choices"][0]["delta"].get("content", "")
        if session.answered:
            break
    assert text == session.visible


def test_an_unknown_position_is_refused():
    history = logged(plain_answer(REQUEST_ID, ["a", "b"]))
    for wrong in (OpId(PARTITION, 99, 0), OpId(PARTITION, 100, 9)):
        with pytest.raises(ApiError) as error:
            DeliverySession(REQUEST_ID, PARTITION, AS_STARTED).resume(history, wrong)
        assert error.value.status == 400
        assert error.value.param == "after"


def test_after_the_last_op_only_the_end_is_sent():
    history = logged(plain_answer(REQUEST_ID, ["a", "b"]))
    pieces, _ = uncut(history, "chat")
    rest = resumed(history, "chat", pieces[-1][0], len(history))
    usage, done, nothing = rest.split(b"\n\n")
    assert orjson.loads(usage[6:])["usage"]["completion_tokens"] == 2
    assert done + b"\n\n" == DONE_EVENT
    assert nothing == b""


def test_an_event_of_another_request_is_refused():
    history = logged(plain_answer(REQUEST_ID, ["a"]))
    other = "01900000-0000-7000-8000-000000000000"
    chunk = next(entry for entry in history if isinstance(entry.event, Chunk))
    with pytest.raises(ValueError, match="cannot be folded"):
        DeliverySession(other, PARTITION, AS_STARTED).feed(chunk)
