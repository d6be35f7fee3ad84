"""A line is a request, or one error that names what is wrong and repeats no prompt."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.jobs.ids import JOB_CHARS, job_of, line_request_id, new_batch_id, parse_request_id
from services.jobs.lines import MAX_LINE_BYTES, BadLine, parse_line

SECRET = "do not repeat me"
BODY = {"model": "m", "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}], "seed": -1}
LINE = {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


def raw(**changed) -> bytes:
    return json.dumps(LINE | changed).encode()


def test_a_request():
    line = parse_line(raw())
    assert (line.custom_id, line.model, line.sampling.seed) == ("x", "m", 2**32 - 1)
    assert [(message.role, message.content) for message in line.messages] == [("system", "a")]


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (raw(method="GET"), "invalid_method", "method"),
        (raw(url="/v1/embeddings"), "invalid_url", "url"),
        (raw(custom_id=""), "invalid_value", "custom_id"),
        (raw(body={}), "invalid_value", "messages"),
        (raw(body=BODY | {"temperature": 3}), "invalid_value", "temperature"),
        (raw(body=BODY | {"tools": [{}]}), "unsupported_parameter", "body.tools"),
        (
            raw(body=BODY | {"messages": [{"role": "user", "content": [SECRET]}]}),
            "invalid_value",
            "messages[0].content[0]",
        ),
        (b" " * (MAX_LINE_BYTES + 1), "line_too_long", None),
    ],
)
def test_what_is_no_request(given, code, param):
    with pytest.raises(BadLine) as bad:
        parse_line(given)
    assert (bad.value.code, bad.value.param) == (code, param)
    assert SECRET not in bad.value.message


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.text()).map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_request_or_a_bad_line(content):
    with contextlib.suppress(BadLine):
        assert parse_line(content).custom_id


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**34 - 1), st.integers(0, 2**32 - 1), st.integers(1, 255))
def test_a_request_id_says_job_line_and_attempt(now_ms, bits, line, attempt):
    batch_id = new_batch_id(now_ms, bits)
    request_id = line_request_id(batch_id, line, attempt)
    assert parse_request_id(request_id) == (job_of(batch_id), line, attempt)
    assert len(job_of(batch_id)) == JOB_CHARS
    assert new_batch_id(now_ms, bits ^ 1) != batch_id
