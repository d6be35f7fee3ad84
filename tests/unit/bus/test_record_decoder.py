import logging
from types import SimpleNamespace

import pytest

from schemas.base import AnyEvent
from schemas.errors import MalformedEvent, NewerVersion, UnknownKind
from schemas.stream import Chunk, Closed
from schemas.wire import encode, key_of
from services.bus import Received, StoredRecord, UnreadableRecord
from services.bus.read.record_decoder import REPEAT_S, BrokenBatch, DecodeErrorLog, RawDecoder, RecordDecoder
from services.runtime.metrics import CONSUMED, MALFORMED, SKIPPED, UNWANTED

TOPIC = "railbus.streams"
REQUEST = "01890a5d-ac96-774b-bcce-b302099a8057"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CLOSED = Closed(request_id=REQUEST, tenant="t", at=1, source="router/1", outcome="completed")
CHUNK = Chunk(request_id=REQUEST, tenant="t", at=1, source="g/1", attempt=1, run="r", seq=0, start=0, text="a")


def record(
    value: bytes | None, headers: list[tuple[str, bytes]], key: bytes | None = REQUEST.encode()
) -> SimpleNamespace:
    return SimpleNamespace(offset=7, timestamp=99, key=key, value=value, headers=headers)


def good(event: AnyEvent, traceparent: str | None = None) -> SimpleNamespace:
    return record(*encode(event, traceparent), key=key_of(event))


def take(intake: RecordDecoder, *records: SimpleNamespace | BrokenBatch) -> list[Received | UnreadableRecord]:
    taken = [intake.decode((TOPIC, 2), record) for record in records]
    intake.count()
    return [one for one in taken if one is not None]


def test_an_event_with_its_place_and_trace() -> None:
    (received,) = take(RecordDecoder(), good(CLOSED, TRACE))
    assert received == Received(TOPIC, 2, 7, 99, CLOSED, TRACE)


@pytest.mark.parametrize("trace", [b"nonsense", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"\xff"])
def test_an_invalid_trace_is_dropped(trace: bytes) -> None:
    value, headers = encode(CLOSED)
    (received,) = take(RecordDecoder(), record(value, [("traceparent", trace), *headers]))
    assert isinstance(received, Received)
    assert received.traceparent is None


def test_a_trace_in_front_of_the_kind_is_read() -> None:
    value, headers = encode(CLOSED)
    (received,) = take(RecordDecoder(), record(value, [("traceparent", TRACE.encode()), *headers]))
    assert isinstance(received, Received)
    assert received.traceparent == TRACE


@pytest.mark.parametrize(
    ("headers", "error"),
    [([("kind", b"Closed"), ("v", b"2")], NewerVersion), ([("kind", b"Hologram"), ("v", b"1")], UnknownKind)],
)
def test_what_a_newer_reader_would_read_is_handed_over_on_request(
    headers: list[tuple[str, bytes]], error: type[Exception]
) -> None:
    item = record(b"{}", headers)
    assert take(RecordDecoder(), item) == []
    (unread,) = take(RecordDecoder(include_newer=True), item)
    assert isinstance(unread, UnreadableRecord)
    assert type(unread.error) is error
    assert (unread.value, unread.headers) == (b"{}", tuple(headers))


def test_unwanted_records_are_not_decoded() -> None:
    asked: list[tuple[str, bytes | None]] = []

    def wants(kind: str, key: bytes | None) -> bool:
        asked.append((kind, key))
        return kind == "Closed"

    broken = record(b"not json", [("kind", b"Chunk"), ("v", b"1")])
    before = UNWANTED.labels(TOPIC)._value.get()
    assert [r.event for r in take(RecordDecoder(wants), broken, good(CLOSED)) if isinstance(r, Received)] == [CLOSED]
    assert asked == [("Chunk", REQUEST.encode()), ("Closed", REQUEST.encode())]
    assert UNWANTED.labels(TOPIC)._value.get() == before + 1


def test_malformed_records_are_passed_on_even_when_nothing_is_wanted() -> None:
    (unread,) = take(RecordDecoder(lambda _kind, _key: False), record(b"{}", []))
    assert isinstance(unread, UnreadableRecord)
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
    kept = take(RecordDecoder(), *records)
    assert [type(r) for r in kept] == [Received, Received, UnreadableRecord]
    changes = {name: counter._value.get() - before[name] for name, counter in counters.items()}
    assert changes == {"consumed": 2, "unknown": 1, "newer": 1, "malformed": 1}


def test_a_malformed_record_is_kept_as_it_was_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = record(b'{"request_id": 5}', [("kind", b"Closed"), ("v", b"1")])
    intake = RecordDecoder()
    with caplog.at_level(logging.WARNING, "railbus.bus"):
        (unread,) = take(intake, broken)
        take(intake, broken)
    assert isinstance(unread, UnreadableRecord)
    as_it_was = (REQUEST.encode(), b'{"request_id": 5}', (("kind", b"Closed"), ("v", b"1")))
    assert (unread.key, unread.value, unread.headers) == as_it_was
    assert isinstance(unread.error, MalformedEvent)
    (line,) = caplog.messages
    assert line.startswith(f"malformed: {TOPIC}[2] offset 7: Closed: ")
    assert "$.request_id" in line


def test_complaints_are_repeated_rarely_and_say_how_many() -> None:
    complaints = DecodeErrorLog()
    error = MalformedEvent("bad - at `$.x`")
    assert complaints.line_for((TOPIC, 2), 1, error, 100.0) == f"malformed: {TOPIC}[2] offset 1: bad - at `$.x`"
    assert complaints.line_for((TOPIC, 2), 1, error, 100.0 + REPEAT_S - 1) is None
    again = complaints.line_for((TOPIC, 2), 1, error, 100.0 + REPEAT_S)
    assert again is not None
    assert again.endswith("(and 1 more since the last such line)")
    skipped = complaints.line_for((TOPIC, 2), 1, UnknownKind("kind 'N' is not known here"), 100.0)
    assert skipped is not None
    assert skipped.startswith("skipped: ")


def test_a_long_message_is_cut() -> None:
    line = DecodeErrorLog().line_for((TOPIC, 2), 1, MalformedEvent("x" * 5_000), 0.0)
    assert line is not None
    assert len(line) < 300


def test_a_batch_that_cannot_be_unpacked_is_one_unread() -> None:
    batch = BrokenBatch(10, "the batch up to offset 19 cannot be unpacked: no codec")
    (unread,) = take(RecordDecoder(), batch)
    assert isinstance(unread, UnreadableRecord)
    assert (unread.offset, unread.value) == (10, None)
    assert "no codec" in str(unread.error)


def test_the_raw_decoder_passes_non_events_and_names_broken_batches() -> None:
    decoder = RawDecoder()
    record = SimpleNamespace(offset=7, timestamp=99, key=None, value=b"\xff", headers=[("kind", None)])
    found = decoder.decode(("railbus.streams", 1), record)
    assert found == StoredRecord("railbus.streams", 1, 7, 99, None, b"\xff", (("kind", None),))
    broken = decoder.decode(("railbus.streams", 1), BrokenBatch(10, "no codec"))
    assert broken == StoredRecord("railbus.streams", 1, 10, 0, None, None, (("railbus-broken-batch", b"no codec"),))
