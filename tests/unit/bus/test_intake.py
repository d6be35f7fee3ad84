import logging
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from schemas.errors import MalformedEvent, NewerVersion, UnknownKind
from schemas.stream import Chunk, Closed
from schemas.wire import AnyEvent, encode, key_of
from services.bus import Received, Unread
from services.bus.intake import REPEAT_S, Complaints, Intake
from services.runtime.metrics import CONSUMED, MALFORMED, SKIPPED, UNWANTED

TOPIC = "railbus.streams"
REQUEST = "01890a5d-ac96-774b-bcce-b302099a8057"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CLOSED = Closed(request_id=REQUEST, tenant="t", at=1, source="router/1", outcome="completed")
CHUNK = Chunk(request_id=REQUEST, tenant="t", at=1, source="g/1", attempt=1, run="r", seq=0, start=0, text="a")


def record(
    value: bytes | None, headers: list[tuple[str, bytes]], key: bytes | None = REQUEST.encode(), offset: int = 7
) -> Any:
    return ConsumerRecord(TOPIC, 2, offset, 99, 0, key, value, None, 0, 0, tuple(headers))


def good(event: AnyEvent, traceparent: str | None = None) -> Any:
    return record(*encode(event, traceparent), key=key_of(event))


def test_an_event_with_its_place_and_trace() -> None:
    (received,) = Intake().take(TOPIC, [good(CLOSED, TRACE)])
    assert received == Received(TOPIC, 2, 7, 99, CLOSED, TRACE)


@pytest.mark.parametrize("trace", [b"nonsense", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"\xff"])
def test_an_invalid_trace_is_dropped(trace: bytes) -> None:
    value, headers = encode(CLOSED)
    (received,) = Intake().take(TOPIC, [record(value, [("traceparent", trace), *headers])])
    assert isinstance(received, Received)
    assert received.traceparent is None


def test_a_trace_in_front_of_the_kind_is_read() -> None:
    value, headers = encode(CLOSED)
    (received,) = Intake().take(TOPIC, [record(value, [("traceparent", TRACE.encode()), *headers])])
    assert isinstance(received, Received)
    assert received.traceparent == TRACE


def test_unwanted_records_are_not_decoded() -> None:
    asked: list[tuple[str, bytes | None]] = []

    def wants(kind: str, key: bytes | None) -> bool:
        asked.append((kind, key))
        return kind == "Closed"

    broken = record(b"not json", [("kind", b"Chunk"), ("v", b"1")])
    before = UNWANTED.labels(TOPIC)._value.get()
    assert [r.event for r in Intake(wants).take(TOPIC, [broken, good(CLOSED)]) if isinstance(r, Received)] == [CLOSED]
    assert asked == [("Chunk", REQUEST.encode()), ("Closed", REQUEST.encode())]
    assert UNWANTED.labels(TOPIC)._value.get() == before + 1


def test_malformed_records_are_passed_on_even_when_nothing_is_wanted() -> None:
    (unread,) = Intake(lambda _kind, _key: False).take(TOPIC, [record(b"{}", [])])
    assert isinstance(unread, Unread)
    assert "header 'kind' is missing" in str(unread.error)


def test_each_record_is_counted_once() -> None:
    value, _ = encode(CLOSED)
    records = [
        good(CLOSED),
        good(CHUNK),
        record(b"{}", [("kind", b"Closed"), ("v", b"1")]),
        record(value, [("kind", b"Novelty"), ("v", b"1")]),
        record(value, [("kind", b"Closed"), ("v", b"2")]),
    ]
    counters = {
        "consumed": CONSUMED.labels(TOPIC),
        "unknown": SKIPPED.labels(TOPIC, UnknownKind.__name__),
        "newer": SKIPPED.labels(TOPIC, NewerVersion.__name__),
        "malformed": MALFORMED.labels(TOPIC),
    }
    before = {name: counter._value.get() for name, counter in counters.items()}
    kept = Intake().take(TOPIC, records)
    assert [type(r) for r in kept] == [Received, Received, Unread]
    changes = {name: counter._value.get() - before[name] for name, counter in counters.items()}
    assert changes == {"consumed": 2, "unknown": 1, "newer": 1, "malformed": 1}


def test_a_malformed_record_is_kept_as_it_was_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = record(b'{"request_id": 5}', [("kind", b"Closed"), ("v", b"1")])
    intake = Intake()
    with caplog.at_level(logging.WARNING, "railbus.bus"):
        (unread,) = intake.take(TOPIC, [broken])
        intake.take(TOPIC, [broken])
    assert isinstance(unread, Unread)
    assert (unread.key, unread.value, unread.headers) == (broken.key, broken.value, broken.headers)
    assert isinstance(unread.error, MalformedEvent)
    (line,) = caplog.messages
    assert line.startswith(f"malformed: {TOPIC}[2] offset 7: Closed: ")
    assert "$.request_id" in line


def test_complaints_are_repeated_rarely_and_say_how_many() -> None:
    complaints = Complaints()
    one = record(b"", [], offset=1)
    error = MalformedEvent("bad - at `$.x`")
    assert complaints.about(one, error, 100.0) == f"malformed: {TOPIC}[2] offset 1: bad - at `$.x`"
    assert complaints.about(one, error, 100.0 + REPEAT_S - 1) is None
    again = complaints.about(one, error, 100.0 + REPEAT_S)
    assert again is not None
    assert again.endswith("(and 1 more since the last such line)")
    skipped = complaints.about(one, UnknownKind("kind 'N' is not known here"), 100.0)
    assert skipped is not None
    assert skipped.startswith("skipped: ")


def test_a_long_message_is_cut() -> None:
    line = Complaints().about(record(b"", []), MalformedEvent("x" * 5_000), 0.0)
    assert line is not None
    assert len(line) < 300
