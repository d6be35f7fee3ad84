import base64
import json
from pathlib import Path

import pytest
from msgspec import structs

from schemas.errors import MalformedEvent
from schemas.side_events import DeadLetter
from schemas.wire import decode
from services.bus import Received, UnreadableRecord
from services.cli.show import event_format
from services.cli.show.event_format import event_json, event_line, event_time_us

DATA = Path(__file__).parents[2] / "data" / "events-v1.jsonl"


def recorded():
    for text in DATA.read_text("utf-8").splitlines():
        record = json.loads(text)
        headers = [(name, value.encode()) for name, value in record["headers"].items()]
        key = record["key"] and record["key"].encode()
        yield Received(
            "railbus.streams", 3, 41, 1_758_800_000_500, decode(record["value"].encode(), headers, key), None
        )


RECORDS = list(recorded())
UNREAD = UnreadableRecord(
    "railbus.requests", 0, 7, 1_000, b"k", b"\x00garbage", (), MalformedEvent("Request: no JSON\x1b[2J\n")
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record.event).__name__)
def test_every_event_is_one_printable_line_without_its_prompt(record):
    text = event_line(record, event_time_us(record), prompts=False)
    assert text.isprintable()
    assert type(record.event).__name__ in text
    assert "streams 3:41" in text
    assert "What is Kafka?" not in text
    assert "Be brief." not in text


def test_prompts_are_shown_on_request():
    shown = [
        event_line(record, 0, prompts=True)
        for record in RECORDS
        if "What is Kafka?" in event_line(record, 0, prompts=True)
    ]
    assert len(shown) == 4  # three requests, one masked prompt


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record.event).__name__)
def test_a_kind_without_a_sentence_is_told_by_its_fields_less_its_prompt(record, monkeypatch):
    monkeypatch.setattr(event_format, "_DESCRIPTIONS", {})
    text = event_line(record, event_time_us(record), prompts=False)
    assert text.isprintable()
    assert "What is Kafka?" not in text
    source = getattr(record.event, "source", None)
    assert source is None or f'source "{source}"' in text
    assert f"at {event_time_us(record)}" not in text


def test_long_fields_are_cut(monkeypatch):
    monkeypatch.setattr(event_format, "_DESCRIPTIONS", {})
    chunk = next(record for record in RECORDS if type(record.event).__name__ == "Chunk")
    text = event_line(chunk._replace(event=structs.replace(chunk.event, text="x" * 5_000)), 0, prompts=False)
    assert "x" * 150 in text
    assert len(text) < 600


def test_times_are_relative():
    chunk = next(record for record in RECORDS if type(record.event).__name__ == "Chunk")
    assert event_line(chunk, chunk.event.at - 12_300, prompts=False).startswith("      +12.3 ms")
    assert event_line(chunk, chunk.event.at + 400, prompts=False).startswith("       -0.4 ms")


def test_what_cannot_be_read_is_shown_as_that():
    text = event_line(UNREAD, 0, prompts=False)
    assert "(unreadable)" in text
    assert "Request: no JSON" in text
    assert text.isprintable()
    assert json.loads(event_json(UNREAD, prompts=False))["unreadable"].startswith("Request: no JSON")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record.event).__name__)
def test_json_lines_hide_prompts_unless_asked(record):
    hidden, shown = (event_json(record, prompts=prompts) for prompts in (False, True))
    assert "What is Kafka?" not in hidden
    assert json.loads(shown)["kind"] == type(record.event).__name__
    assert json.loads(hidden)["event"].keys() == json.loads(shown)["event"].keys()


def test_unreadable_records_are_not_shown_without_prompts():
    value = b'{"messages":[{"role":"user","content":"secret"}]}'
    text = base64.b64encode(value).decode()
    unread = UnreadableRecord("railbus.requests", 0, 5, 1, b"k", value, (), MalformedEvent("bad"))
    letter = DeadLetter(
        at=1, source="router/1", topic="railbus.requests", partition=0, offset=5, reason="x", value_b64=text
    )
    for record in (unread, Received("railbus.dead", 0, 0, 1, letter, None)):
        assert text not in event_json(record, prompts=False)
        assert text in event_json(record, prompts=True)
