"""Test how the bodies of chat requests are parsed."""

from typing import get_type_hints

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from schemas.ids import uuid7
from schemas.requests import MAX_WAITED_MS, Delivery, Request, Sampling
from services.edge.errors import ApiError
from services.edge.requests.chat_schema import ACCEPTED_UNUSED, KNOWN_FIELDS
from services.edge.requests.parse import parse_chat_request, parse_json
from services.runtime.chat_body import REFUSED_UNLESS
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import ServiceClasses

HI = [{"role": "user", "content": "hi"}]
ID = uuid7(1_763_700_000_000, 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def request(ask):
    return ask.request(request_id=ID, tenant="acme", at_us=7, source="edge/1")


def test_a_request_says_how_long_it_waited_and_not_more_than_counts():
    ask = parse_chat_request({"messages": [{"role": "user", "content": "hi"}]})
    for waited_us, said_ms in ((0, 0.0), (12_500, 12.5), (-5, 0.0), (10**12, MAX_WAITED_MS)):
        asked = ask.request(request_id=ID, tenant="acme", at_us=7, source="edge/1", waited_us=waited_us)
        assert (asked.at, asked.waited_ms) == (7, said_ms)


def test_the_smallest_body():
    ask = parse_chat_request({"messages": HI})
    made = request(ask)
    assert (made.request_id, made.tenant, made.at, made.source) == (ID, "acme", 7, "edge/1")
    assert made.model == "default"
    assert made.sampling == Sampling()
    assert made.delivery == Delivery()
    assert (ask.stream, ask.include_usage, ask.on_restart, ask.ignored) == (False, False, "error", ())


def test_a_body_with_every_field():
    ask = parse_chat_request(
        {
            "messages": HI, "model": "tiny", "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": 9, "max_completion_tokens": 9, "temperature": 0, "top_p": 0.5, "stop": ["a", "b"], "seed": 3,
            "user": "u", "n": 1, "logprobs": False, "frequency_penalty": 0.0, "top_k": 3,
            "railbus": {
                "delivery": {"mode": "windowed", "hold_tokens": 4}, "deadlines": {"ttft_ms": 50}, "fallback": "race",
                "egress": "forbidden", "lane": "batch", "restart": "marker",
            },
        }
    )  # fmt: skip
    made = request(ask)
    assert made.sampling == Sampling(max_tokens=9, temperature=0.0, top_p=0.5, seed=3, stop=("a", "b"))
    assert made.delivery == Delivery(mode="windowed", hold_tokens=4)
    assert made.deadlines == structs.replace(ServiceClasses().get("batch").deadlines, ttft_ms=50)
    assert (made.fallback, made.egress, made.lane, ask.lane) == ("race", "forbidden", "batch", "batch")
    assert (ask.stream, ask.include_usage, ask.on_restart, ask.ignored) == (True, True, "marker", ("top_k",))


def test_null_means_left_out():
    names = ("model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop", "seed", "railbus")
    nulls = dict.fromkeys((*names, *REFUSED_UNLESS))
    assert parse_chat_request({"messages": HI} | nulls) == parse_chat_request({"messages": HI})


def test_parts_and_roles():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    refusal = [{"type": "refusal", "refusal": "no"}]
    made = request(
        parse_chat_request(
            {
                "messages": [
                    {"role": "developer", "content": "d", "name": "x"},
                    {"role": "user", "content": parts},
                    {"role": "assistant", "content": refusal},
                ]
            }
        )
    )
    assert [(m.role, m.content) for m in made.messages] == [("system", "d"), ("user", "a\nb"), ("assistant", "no")]


@pytest.mark.parametrize(
    ("name", "value"), [("n", True), ("logprobs", 0), ("logprobs", True), ("n", 2), ("audio", {}), ("verbosity", "low")]
)
def test_unsupported_parameters_are_refused_by_name(name, value):
    with pytest.raises(ApiError) as error:
        parse_chat_request({"messages": HI, name: value})
    assert (error.value.param, error.value.code) == (name, "unsupported_parameter")


def test_every_parameter_of_openais_client_is_known():
    known = KNOWN_FIELDS | ACCEPTED_UNUSED | REFUSED_UNLESS.keys()
    assert get_type_hints(CompletionCreateParamsBase).keys() - known == set()


def test_parts_together_too_long():
    part = {"type": "text", "text": "x" * 140_000}
    with pytest.raises(ApiError, match="262,144"):
        parse_chat_request({"messages": [{"role": "user", "content": [part, part]}]})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": [{"role": "user", "content": "x" * 262_145}]}, "string_above_max_length"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 140_000}] * 2}]},
            "string_above_max_length",
        ),
        ({"messages": HI, "model": "x" * 300}, "string_above_max_length"),
        ({"messages": HI, "railbus": {"delivry": "gated"}}, "unknown_parameter"),
        ({"messages": HI, "railbus": {"deadlines": {"ttft": 1}}}, "unknown_parameter"),
        ({"messages": HI, "railbus": {"delivery": "soon"}}, "invalid_value"),
        ({"messages": 3}, "invalid_value"),
    ],
    ids=["text", "parts", "model", "extension", "deadline", "mode", "type"],
)
def test_the_code_says_what_is_wrong_with_a_field(body, code):
    with pytest.raises(ApiError) as refused:
        parse_chat_request(body)
    assert (refused.value.status, refused.value.code) == (400, code)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(("messages", "model", "stream", "max_tokens", "stop", "seed", "railbus", "tools", "x")), JSON
    )
)
def test_any_object_is_accepted_or_refused_in_one_sentence(body):
    try:
        made = request(parse_chat_request(body))
    except ApiError as error:
        refused = error
    else:
        assert msgspec.json.decode(orjson.dumps(made), type=Request) == made  # what passes here fits the event
        return
    assert 400 <= refused.status < 500
    assert refused.message.endswith(".")


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_an_error(raw):
    try:
        assert isinstance(parse_json(raw), dict)
    except ApiError as error:
        refused = error
    else:
        return
    assert (refused.status, refused.code) == (400, "invalid_json")


STRICT = ServiceClasses(bounds=DeadlineBounds(total_ms=(1_000, 30_000), ttft_ms=(500, 2_000)))


@pytest.mark.parametrize(
    ("name", "ms"), [("total_ms", 30_001), ("total_ms", 999), ("ttft_ms", 1), ("stall_ms", 30_001)]
)
def test_a_deadline_beyond_the_policy_is_refused(name, ms):
    with pytest.raises(ApiError, match="the policy allows no other") as refused:
        parse_chat_request({"messages": HI, "railbus": {"deadlines": {name: ms}}}, STRICT)
    assert (refused.value.status, refused.value.param) == (400, f"railbus.deadlines.{name}")


def test_deadlines_that_were_not_asked_for_come_within_the_policy():
    for body in ({}, {"railbus": {"deadlines": {"stall_ms": 5_000}}}, {"railbus": {"deadlines": None}}):
        deadlines = parse_chat_request({"messages": HI} | body, STRICT).template.deadlines
        assert (deadlines.total_ms, deadlines.ttft_ms) == (30_000, 500)  # asked for by default: 60,000 and 200
    assert deadlines.verdict_ms == 1_000
