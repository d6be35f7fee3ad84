"""Test that decoding a record that is not a valid event raises an error that says why."""

import orjson
import pytest

from schemas.errors import MalformedEvent, NewerVersion, SkippedEvent, UnknownKind
from schemas.wire import MAX_EVENT_BYTES, decode

REQUEST_ID = "0199a2b4-0000-7000-8000-000000000001"
KEY = REQUEST_ID.encode()
CHUNK = {
    "request_id": REQUEST_ID, "tenant": "local", "at": 1, "source": "generator/1",
    "attempt": 1, "run": "r", "seq": 0, "start": 0, "text": "Hello",
}  # fmt: skip
HEADERS = [("kind", b"Chunk"), ("v", b"1")]


def read(change=None, headers=HEADERS, key=KEY):
    return decode(orjson.dumps(CHUNK | (change or {})), headers, key)


def test_the_example_is_an_event():
    assert read().text == "Hello"


def test_an_unknown_kind_is_skipped():
    with pytest.raises(UnknownKind, match="Hologram"):
        read(headers=[("kind", b"Hologram"), ("v", b"1")])


def test_a_newer_version_is_skipped_without_looking_at_the_value():
    with pytest.raises(NewerVersion, match="version 2"):
        decode(b"whatever version 2 is", [("kind", b"Chunk"), ("v", b"2")], KEY)
    assert issubclass(NewerVersion, SkippedEvent)
    assert issubclass(UnknownKind, SkippedEvent)


@pytest.mark.parametrize(
    "headers", [[], [("v", b"1")], [("kind", b"\xff"), ("v", b"1")], [("kind", None), ("v", b"1")]]
)
def test_a_missing_kind_is_named(headers):
    with pytest.raises(MalformedEvent, match="'kind'"):
        read(headers=headers)


@pytest.mark.parametrize("version", [b"", b"one", b"-1", b"1.0", b"0", b"9999999999", b"\xc2\xb2", b"\xff"])
def test_a_version_that_is_no_number_is_named(version):
    with pytest.raises(MalformedEvent, match="'v'"):
        read(headers=[("kind", b"Chunk"), ("v", version)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seq": -1}, r"\$\.seq"),
        ({"seq": "0"}, r"\$\.seq"),
        ({"seq": 0.5}, r"\$\.seq"),
        ({"text": ""}, r"\$\.text"),
        ({"text": None}, r"\$\.text"),
        ({"at": -5}, r"\$\.at"),
        ({"at": 2**60}, r"\$\.at"),
        ({"tenant": "acme\n"}, r"\$\.tenant"),
        ({"request_id": REQUEST_ID + "\n"}, r"\$\.request_id"),
        ({"tenant": "two words"}, r"\$\.tenant"),
        ({"request_id": "42"}, r"\$\.request_id"),
        ({"request_id": REQUEST_ID.upper()}, r"\$\.request_id"),
        ({"attempt": 0}, r"\$\.attempt"),
    ],
)
def test_a_wrong_field_is_named(change, named):
    with pytest.raises(MalformedEvent, match=f"Chunk: .*{named}"):
        read(change)


def test_a_duration_that_is_no_finite_number_of_microseconds_is_malformed():
    verdict = {"request_id": REQUEST_ID, "tenant": "local", "at": 1, "source": "rails/1", "decision": "allow"}
    value = orjson.dumps(verdict | {"policy_version": "p", "total_ms": 1e306})
    with pytest.raises(MalformedEvent, match=r"Verdict: .*\$\.total_ms"):
        decode(value, [("kind", b"Verdict"), ("v", b"1")], KEY)


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"null", b"\x00\xff", b'{"text": "\xff"}', b"[" * 100_000])
def test_a_value_that_is_no_object_is_malformed(value):
    with pytest.raises(MalformedEvent, match="Chunk"):
        decode(value, HEADERS, KEY)


def test_a_value_above_the_limit_is_not_parsed():
    with pytest.raises(MalformedEvent, match=f"limit is {MAX_EVENT_BYTES}"):
        decode(b"{" * (MAX_EVENT_BYTES + 1), HEADERS, KEY)


@pytest.mark.parametrize("key", [None, b"", b"another", REQUEST_ID[:-1].encode()])
def test_a_key_that_is_not_the_request_id_is_malformed(key):
    with pytest.raises(MalformedEvent, match="`key`"):
        read(key=key)


@pytest.mark.parametrize("prompt", ["my secret", "It's secret\n", "my 'secret' - at \"x\"", ""])
def test_the_error_does_not_repeat_a_prompt_in_the_wrong_field(prompt):
    """The error is logged, so it must not contain a prompt that was written into the field ``role`` by mistake."""
    request = {"request_id": REQUEST_ID, "tenant": "local", "at": 1, "source": "app"}
    value = orjson.dumps(request | {"messages": [{"role": prompt, "content": "user"}]})
    with pytest.raises(MalformedEvent) as caught:
        decode(value, [("kind", b"Request"), ("v", b"1")], KEY)
    assert str(caught.value) == "Request: Invalid enum value - at `$.messages[0].role`"
