"""Test that a line of a job becomes a request, or an error that names the mistake without the prompt's text."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.errors import ApiError
from services.edge.requests.parse import parse_chat_request
from services.jobs.ids import JOB_CHARS, job_of, line_request_id, new_batch_id, parse_request_id
from services.jobs.lines import MAX_LINE_BYTES, BadLine, parse_line

SECRET = "do not repeat me"
BODY = {"model": "m", "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}], "seed": -1}
TOO_LONG = [{"role": "user", "content": [{"type": "text", "text": "x" * 140_000}] * 2}]
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
        (raw(body={}), "invalid_value", "body.messages"),
        (raw(body=BODY | {"temperature": 3}), "invalid_value", "body.temperature"),
        (raw(body=BODY | {"tools": [{}]}), "unsupported_parameter", "body.tools"),
        (raw(body=BODY | {"stream": True}), "unsupported_parameter", "body.stream"),
        (raw(body=BODY | {"n": True}), "unsupported_parameter", "body.n"),
        (raw(body=BODY | {"max_tokens": 1, "max_completion_tokens": 2}), "invalid_value", "body.max_tokens"),
        (raw(body=BODY | {"messages": TOO_LONG}), "string_above_max_length", "body.messages"),
        (
            raw(body=BODY | {"messages": [{"role": "user", "content": [SECRET]}]}),
            "invalid_value",
            "body.messages[0].content[0]",
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


@given(
    st.dictionaries(
        st.sampled_from(["model", "max_tokens", "temperature", "stop", "seed", "n", "tools", "messages"]),
        st.none() | st.booleans() | st.integers(-1, 9) | st.floats(0, 3) | st.text(max_size=3) | st.just([]),
    )
)
def test_a_line_and_a_request_over_http_are_judged_alike(changed):
    body = BODY | changed
    try:
        asked = parse_chat_request(body).template
    except ApiError as error:
        refused = error
        with pytest.raises(BadLine) as bad:
            parse_line(raw(body=body))
        assert (bad.value.code, bad.value.message) == (refused.code, refused.message)
        assert bad.value.param == f"body.{refused.param}"
    else:
        line = parse_line(raw(body=body))
        assert (line.model, line.messages, line.sampling) == (asked.model, asked.messages, asked.sampling)
