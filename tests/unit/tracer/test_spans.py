"""Test the trace of a request.

The latency of a request has parts, such as ``prefill``. The spans of the parts add up to the latency. No span contains
text of the prompt or of the answer.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from schemas.requests import Message, Request
from schemas.side_events import Detached
from schemas.stream import Cutover, Failed, Recall, Speculation, Usage
from schemas.trace import traceparent_for
from services.stream.latency import LogEvent, latency
from services.tracer.spans import is_sampled, trace_of
from tests.support.examples import examples
from tests.support.router_accounts import router_account
from tests.unit.stream.histories import REQUEST_ID, grow
from tests.unit.stream.test_latency import T0_MS, Story, plain_story

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def trace_from(request_id, log, traceparent=None):
    """Return the trace of the request whose events are in ``log``; None if the request is not closed.

    The function computes the router's account from ``log``. Like the tracer, it makes the trace only from that account
    and the receipts.
    """
    account = router_account(request_id, log)
    if account is None:
        return None
    receipts = [each.event for each in log if isinstance(each.event, Detached)]
    sent_at = min((each.at for each in receipts if each.reason == "complete"), default=None)
    return trace_of(account, sent_at, receipts[-1] if receipts else None, traceparent)


def traced(story, traceparent=None):
    return trace_from(story.made.id, story.log, traceparent)


def parts_of(trace):
    return [span for span in trace.spans if "railbus.part" in span.attributes]


def named(trace, name):
    (found,) = [span for span in trace.spans if span.name == name]
    return found


def ms(span):
    return (span.end_ns - span.start_ns) / 1e6


def test_the_parts_follow_each_other_and_add_up_to_the_root():
    trace = traced(plain_story())
    root, *_ = trace.spans
    parts = parts_of(trace)

    assert [(span.name, ms(span)) for span in parts] == [
        ("post", 4), ("worker", 6), ("engine queue", 15), ("prefill", 35), ("decode", 40), ("close", 13),
        ("delivery", 3.5),
    ]  # fmt: skip
    assert [span.start_ns for span in parts] == [root.start_ns, *[span.end_ns for span in parts[:-1]]]
    assert (root.start_ns, parts[-1].end_ns) == (T0_MS * 10**6, root.end_ns)
    assert {span.parent_id for span in parts} == {root.span_id}


def test_what_ran_beside_has_spans_of_its_own():
    trace = traced(plain_story())
    root = trace.spans[0]
    verdict, rail, check = named(trace, "verdict"), named(trace, "rail r"), named(trace, "check")

    assert (verdict.start_ns - root.start_ns, verdict.end_ns - root.start_ns) == (5 * 10**6, 25 * 10**6)
    assert rail.parent_id == verdict.span_id
    assert (check.service, ms(check)) == ("safety", 50)
    attempt = named(trace, "chat m")
    assert (attempt.kind, attempt.parent_id, ms(attempt)) == ("client", root.span_id, 92)
    assert attempt.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.051)


def test_the_root_has_the_conventions_attributes():
    story = plain_story()
    finished = story.log[-4]
    assert type(finished.event).__name__ == "Finished"
    usage = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2)
    event = structs.replace(finished.event, usage=usage, speculation=Speculation(drafted=4, accepted=2))
    story.log[-4] = LogEvent(finished.appended_ms, event)
    root = traced(story).spans[0]

    assert root.name == "chat default"
    assert root.kind == "server"
    assert root.error is None
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "default", "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.response.time_to_first_chunk": 0.06,
        "gen_ai.response.id": story.made.id, "railbus.outcome": "completed", "railbus.tenant": "acme",
    }  # fmt: skip
    assert {name: root.attributes.get(name) for name in expected} == expected


def test_every_gen_ai_attribute_is_one_of_the_conventions():
    pytest.importorskip("opentelemetry.semconv", reason="pip install -r requirements/otel.txt")
    from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes

    known = {v for module in (gen_ai_attributes, error_attributes) for v in vars(module).values() if isinstance(v, str)}
    story = plain_story()
    failed = structs.replace(story.made.failed(), at=0)
    used = {name for span in traced(story.add(112, failed)).spans for name in span.attributes}

    assert {name for name in used if not name.startswith("railbus.")} - known == set()
    assert sum(name.startswith("gen_ai.") for name in used) > 10


def test_a_second_attempt_and_a_recall_are_seen():
    story = Story().received(4).started(10).verdict(20, 12.0)
    story = story.add(200, Failed(**story.made.about(), attempt=1, run=f"{story.made.run}/1", error_class="overloaded",
                                  message="secret words", retryable=True))  # fmt: skip
    cutover = Cutover(**story.made.about(), attempt=2, trigger="hard_error")
    started = story.made.started(2, engine="vertex", model="gemini", input_gate="hold", output_check="on")
    story = story.add(204, cutover).add(210, started, source="vertex/1")
    story = story.chunk(260, 0, attempt=2).finished(261, 0, attempt=2)
    recall = Recall(**story.made.about(), attempt=2, run=f"{story.made.run}/2", recall_id="x", start=0, end=1,
                    action="redact", rule="pii/email", category="email", policy_version="v")  # fmt: skip
    trace = traced(story.add(263, recall).cleared(265, 0, final=True, attempt=2).closed(266, attempt=2).sent(268))

    assert named(trace, "chat m").error == "overloaded"
    cloud = named(trace, "chat gemini")
    assert (cloud.service, cloud.attributes["gen_ai.provider.name"]) == ("vertex", "gcp.vertex_ai")
    assert trace.spans[0].attributes["gen_ai.response.model"] == "gemini"
    assert [(each.name, each.attributes["railbus.trigger"]) for each in trace.spans[0].events] == [
        ("cutover", "hard_error")
    ]
    assert named(trace, "check").events[0].attributes["railbus.rule"] == "pii/email"
    assert "secret words" not in str(trace)


def test_a_request_that_failed_is_an_error_and_a_denied_one_is_not():
    failed = Story().received(4).started(10).verdict(20, 1.0)
    failed = traced(failed.closed(300, "expired", cause="deadline"))
    denied = traced(Story().received(4).verdict(20, 1.0, "deny").closed(22, "denied", cause="denied").sent(23))

    assert failed.spans[0].error == "deadline"
    assert denied.spans[0].error is None
    assert denied.spans[0].attributes["railbus.cause"] == "denied"


def test_a_trace_that_the_client_began_goes_on():
    trace = traced(plain_story(), CLIENT)

    assert trace.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
    assert trace.spans[0].parent_id == 0x00F067AA0BA902B7
    assert is_sampled(CLIENT)
    assert not is_sampled(CLIENT[:-2] + "00")


def test_a_trace_that_the_edge_began_has_the_root_that_the_edge_named():
    story = plain_story()
    trace = traced(story, traceparent_for(story.made.id, 0xABCD))

    assert trace.trace_id == int(story.made.id.replace("-", ""), 16)
    assert (trace.spans[0].span_id, trace.spans[0].parent_id) == (0xABCD, None)


def test_the_same_log_gives_the_same_trace_and_every_span_its_own_id():
    story = plain_story()

    assert traced(story) == traced(story)
    ids = [span.span_id for span in traced(story).spans]
    assert len(set(ids)) == len(ids)


def test_no_trace_before_the_end_or_without_the_request():
    story = plain_story()

    assert trace_from(story.made.id, story.log[:-2]) is None
    assert trace_from(story.made.id, story.log[1:]) is None


SECRET = "the prompt that nobody may see"


@settings(max_examples=examples(300))
@given(
    data=st.binary(min_size=150, max_size=400), steps=st.lists(st.integers(0, 60), max_size=400),
    ahead_ms=st.integers(-5_000, 5_000), took_ms=st.integers(0, 5_000),
)  # fmt: skip
def test_the_spans_of_any_history_equal_its_account(data, steps, ahead_ms, took_ms):
    at_ms = T0_MS
    about = {"request_id": REQUEST_ID, "tenant": "t", "source": "test"}
    message = (Message(role="user", content=SECRET),)
    log = [LogEvent(at_ms + 3, Request(**about, at=(at_ms + ahead_ms) * 1_000, messages=message))]
    for index, event in enumerate(grow(data)):
        at_ms += steps[index % len(steps)] if steps else 1
        log.append(LogEvent(at_ms, event))
    sent_us = max(log[0].event.at, (at_ms + ahead_ms + took_ms) * 1_000)
    receipt = Detached(**about, at=sent_us, connection="c", reason="complete", ops=1, ops_hash="0" * 64)
    log.append(LogEvent(at_ms, receipt))

    found, trace = latency(REQUEST_ID, log), trace_from(REQUEST_ID, log, CLIENT)

    assert (found is None) == (trace is None)
    if found is None:
        return
    assert {span.name: ms(span) for span in parts_of(trace)} == pytest.approx(
        {name: took for name, took in found.parts if took >= 1e-6}, abs=1e-3
    )
    assert sum(map(ms, parts_of(trace))) == pytest.approx(found.total_ms, abs=1e-3)
    assert ms(trace.spans[0]) == pytest.approx(found.total_ms, abs=1e-3)
    assert all(span.end_ns >= span.start_ns for span in trace.spans)
    assert len({span.span_id for span in trace.spans}) == len(trace.spans)
    written = {value for span in trace.spans for value in map(str, span.attributes.values())}
    assert SECRET not in str(trace)
    assert not any(ord(character) >= 0x10000 for value in written for character in value)  # no text of answers
