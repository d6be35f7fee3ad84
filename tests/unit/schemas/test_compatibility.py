"""Events recorded by earlier versions stay readable, whatever the classes become.

A recorded line is never edited: a change that breaks one is a new version of that kind, read beside the old one.
"""

import json
from pathlib import Path

import pytest

from schemas.registry import KINDS
from schemas.wire import decode, encode

DATA = Path(__file__).parents[2] / "data"
LINES = [line for path in sorted(DATA.glob("events-v*.jsonl")) for line in path.read_text("utf-8").splitlines()]
RECORDED = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: record["headers"]["kind"])
def test_a_recorded_event_is_read_and_nothing_it_said_is_lost(record):
    headers = [(name, value.encode()) for name, value in record["headers"].items()]
    key = None if record["key"] is None else record["key"].encode()
    event = decode(record["value"].encode(), headers, key)
    assert type(event).__name__ == record["headers"]["kind"]
    written_again = json.loads(encode(event)[0])
    assert json.loads(record["value"]).items() <= written_again.items()


def test_every_version_of_every_kind_is_recorded():
    recorded = {(record["headers"]["kind"], record["headers"]["v"]) for record in RECORDED}
    assert recorded == {(name, str(v)) for name, kind in KINDS.items() for v in range(1, kind.version + 1)}
