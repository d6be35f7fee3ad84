"""Test that ``ManyDecoder`` decodes records of one kind in the same way as ``decode`` decodes each of them."""

import json
from pathlib import Path

import pytest

from schemas.errors import UnreadableEvent
from schemas.wire import MAX_EVENT_BYTES, ManyDecoder, decode

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "events-v1.jsonl").read_text(encoding="utf-8").splitlines()
]


def one_by_one(value, headers, key):
    try:
        return decode(value, headers, key)
    except UnreadableEvent:
        return None


def record(row):
    headers = [(name, text.encode()) for name, text in row["headers"].items()]
    return row["value"].encode(), headers, None if row["key"] is None else row["key"].encode()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["headers"]["kind"])
def test_it_is_as_each_by_itself(row):
    value, headers, key = record(row)
    many = ManyDecoder(headers)
    assert many.kind == row["headers"]["kind"]
    for spoilt in (value, value[:-1], b"[]", b"\xff", b"", None, value.replace(b'"tenant":"', b'"tenant":"\\n'),
                   b" " * MAX_EVENT_BYTES + value):  # fmt: skip
        for other in (key, None, b"another"):
            assert many.decode(spoilt, other) == one_by_one(spoilt, headers, other)
    assert many.decode(value, key) is not None
    assert ManyDecoder(headers[::-1]).decode(value, key) == many.decode(value, key)


@pytest.mark.parametrize(
    "headers", [[], [("kind", b"Chunk")], [("kind", b"Chunk"), ("v", b"99")], [("kind", b"Rumour"), ("v", b"1")],
                [("kind", b"Chunk"), ("v", b"\xff")]],
)  # fmt: skip
def test_headers_that_no_record_can_have_are_refused(headers):
    with pytest.raises(UnreadableEvent):
        ManyDecoder(headers)
