"""Test that a ``ChatRequest`` becomes the same event, whether the edge or the command line writes it to the log."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.client.chat_request import ChatRequest
from services.edge.requests.parse import parse_chat_request
from services.runtime import UserError
from services.runtime.classes.policy_deadlines import WIDEST_BOUNDS
from services.runtime.classes.service_classes import ClassSpec, DefaultDeadlines, ServiceClasses

ANY = ServiceClasses(bounds=WIDEST_BOUNDS)
ID = "0199a2b4-1c00-7abc-8def-0123456789ab"

QUESTIONS = st.builds(
    ChatRequest,
    prompt=st.text(min_size=1, max_size=50),
    system=st.none() | st.text(max_size=20),
    model=st.none() | st.just("smollm2"),
    max_tokens=st.none() | st.integers(1, 131_072),
    temperature=st.none() | st.floats(0, 2),
    seed=st.none() | st.integers(0, 2**32 - 1),
    delivery=st.none() | st.sampled_from(["optimistic", "windowed", "gated"]),
    fallback=st.none() | st.sampled_from(["cancel", "race", "off"]),
    ttft_ms=st.none() | st.integers(1, 86_400_000),
    stall_ms=st.none() | st.integers(1, 86_400_000),
    total_ms=st.none() | st.integers(1, 86_400_000),
)


@given(QUESTIONS)
def test_the_edge_makes_of_it_what_the_log_would_get(question):
    through_edge = parse_chat_request(question.body(), ANY).request(
        request_id=ID, tenant="local", at_us=5, source="here"
    )
    assert through_edge == question.request(request_id=ID, at_us=5, source="here")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"max_tokens": 0}, "max_tokens"), ({"temperature": 3.0}, "temperature"), ({"total_ms": -1}, "total_ms")],
)
def test_a_value_out_of_bounds_is_named(change, named):
    with pytest.raises(UserError, match=named):
        replace(ChatRequest(prompt="hi"), **change).request(request_id=ID, at_us=5, source="here")


def test_patience_follows_the_deadline():
    assert ChatRequest(prompt="hi", total_ms=5_000).timeout_s() == 15
    assert ChatRequest(prompt="hi").timeout_s(60_000) == 70


def test_patience_covers_the_deadline_of_the_policys_default_class():
    slow = ClassSpec(deadlines=DefaultDeadlines(total_ms=120_000))
    question = ChatRequest(prompt="hi")
    made = parse_chat_request(question.body(), ServiceClasses({"chat": slow})).template
    assert made.deadlines.total_ms / 1_000 < question.timeout_s()
