"""Test that events recorded by earlier versions stay readable.

Never edit a recorded line. If a change makes a line unreadable, the change needs a new version of that kind of event,
and readers must still read the old version.
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
    assert says_all_of(json.loads(encode(event)[0]), json.loads(record["value"]))


def says_all_of(new, old):
    """Return whether ``new`` has all values of ``old``, unchanged. ``new`` may have more fields at any depth."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and says_all_of(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(says_all_of, new, old))
    return isinstance(new, bool) is isinstance(old, bool) and new == old


def test_a_change_at_any_depth_is_a_loss():
    old = {"a": [{"b": 1, "c": [2]}]}
    assert says_all_of({"a": [{"b": 1, "c": [2], "d": None}], "e": 3}, old)
    for new in ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": [3]}]}, {"a": []}, {"a": [{"b": True, "c": [2]}]}, {}):
        assert not says_all_of(new, old)


def test_every_version_of_every_kind_is_recorded():
    recorded = {(record["headers"]["kind"], record["headers"]["v"]) for record in RECORDED}
    assert recorded == {(name, str(v)) for name, kind in KINDS.items() for v in range(1, kind.version + 1)}
