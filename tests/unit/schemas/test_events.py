"""Test that every event can be encoded and decoded without a loss, and that its JSON Schema accepts it."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.documents.json_schemas import event_schema
from schemas.registry import KINDS
from schemas.stream import Chunk
from schemas.wire import decode, encode, key_of
from tests.unit.schemas.strategies import any_event, events

VALIDATORS = {name: Draft202012Validator(event_schema(kind)) for name, kind in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_round_trips_and_validates_against_its_schema(kind):
    @given(events(kind))
    def check(event):
        value, headers = encode(event)
        assert decode(value, headers, key_of(event)) == event
        VALIDATORS[kind].validate(json.loads(value))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_the_future_are_ignored(kind):
    @given(events(kind), st.integers() | st.text() | st.lists(st.none()))
    def check(event, extra):
        value, headers = encode(event)
        newer = json.dumps(json.loads(value) | {"a_field_of_the_future": extra}).encode()
        assert decode(newer, headers, key_of(event)) == event
        VALIDATORS[kind].validate(json.loads(newer))

    check()


@given(any_event(), st.data())
def test_a_missing_required_field_is_named(event, data):
    value, headers = encode(event)
    kind = type(event).__name__
    gone = data.draw(st.sampled_from(sorted(event_schema(KINDS[kind])["required"])))
    body = json.loads(value)
    del body[gone]
    assert not VALIDATORS[kind].is_valid(body)
    with pytest.raises(Exception, match=f"{kind}.*`{gone}`"):
        decode(json.dumps(body).encode(), headers, key_of(event))


def test_every_field_of_every_event_is_described():
    for name, kind in KINDS.items():
        schema = event_schema(kind)
        for where, part in {name: schema, **schema.get("$defs", {})}.items():
            assert part["description"], where
            for field, rule in part["properties"].items():
                assert rule.get("description"), f"{where}.{field} has no line in the docstring's Attributes"


def test_a_large_event_takes_no_more_memory_than_its_bytes():
    event = Chunk(
        request_id="r", tenant="t", at=1, source="s", attempt=1, run="r", seq=0, start=0, text="x" * 100_000, tokens=1
    )
    tracemalloc.start()
    try:
        value, _ = encode(event)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(value) <= taken < 2 * len(value)
