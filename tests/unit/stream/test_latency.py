"""Test how the latency of a request is divided into parts, and that the parts add up to the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from schemas.requests import Delivery, Message, Request
from schemas.side_events import Detached
from schemas.stream import Cleared, Closed, Cutover, RailOutcome, Timings, Verdict
from services.stream.latency import LogEvent, latency, settle
from tests.support.examples import examples
from tests.support.request_events import RequestEvents
from tests.unit.stream.histories import REQUEST_ID, grow

T0_MS = 1_700_000_000_000


class Story:
    """Builds the log of one request. Times are in milliseconds after the receipt of the request."""

    def __init__(self, **fields):
        self.made = RequestEvents(**fields)
        self.log = []

    def add(self, ms, event, **changes):
        self.log.append(LogEvent(T0_MS + ms, _at(event, T0_MS + ms, **changes)))
        return self

    def received(self, posted_ms, edge_ahead_ms=0.0):
        request = _at(self.made.request, T0_MS + edge_ahead_ms)
        self.log.append(LogEvent(T0_MS + posted_ms, request))
        return self

    def started(self, ms, attempt=1, **fields):
        return self.add(ms, self.made.started(attempt, **({"input_gate": "hold", "output_check": "on"} | fields)))

    def verdict(self, ms, rails_ms, decision="allow"):
        about = self.made.about()
        refusal = "no" if decision == "deny" else ""
        rails = (RailOutcome(rail="r", result="passed", ms=rails_ms),)
        event = Verdict(**about, decision=decision, rails=rails, policy_version="v", refusal=refusal, total_ms=rails_ms)
        return self.add(ms, event)

    def chunk(self, ms, seq, attempt=1):
        return self.add(ms, self.made.chunk(seq, attempt))

    def finished(self, ms, last_seq, attempt=1, **timings):
        event = self.made.finished(last_seq, attempt)
        return self.add(ms, event, timings=Timings(**timings))

    def cleared(self, ms, seq, *, final=False, attempt=1):
        run = f"{self.made.run}/{attempt}"
        event = Cleared(**self.made.about(), attempt=attempt, run=run, seq=seq, final=final, policy_version="v")
        return self.add(ms, event)

    def closed(self, ms, outcome="completed", **fields):
        return self.add(ms, Closed(**self.made.about(), outcome=outcome, **fields))

    def sent(self, ms, edge_ahead_ms=0.0):
        values = self.made.about() | {"at": int((T0_MS + ms + edge_ahead_ms) * 1_000)}
        event = Detached(**values, connection="c", reason="complete", ops=3, ops_hash="0" * 64)
        self.log.append(LogEvent(int(T0_MS + ms) + 5, event))
        return self

    def latency(self, **options):
        return latency(self.made.id, self.log, **options)


def _at(event, ms, **changes):
    return structs.replace(event, at=int(ms * 1_000), **changes)


def plain_story():
    return (
        Story().received(4).started(10).verdict(25, 20.0).chunk(60, 0).chunk(80, 1).chunk(100, 2)
        .finished(101, 2, queue_ms=15.0).cleared(110, 2, final=True).closed(113).sent(116.5)
    )  # fmt: skip


def test_an_answer_whose_rails_are_hidden_waits_for_no_rails():
    found = plain_story().latency()

    assert dict(found.parts) == pytest.approx(
        {
            "post": 4, "worker": 6, "engine queue": 15, "prefill": 35, "rails": 0, "hold-back": 0, "decode": 40,
            "final hold-back": 0, "close": 13, "delivery": 3.5,
        }
    )  # fmt: skip
    assert found.total_ms == pytest.approx(116.5)
    assert found.first_text_ms == pytest.approx(60)
    assert found.hidden_rails_ms == pytest.approx(20)
    assert (found.governance_first_text_ms, found.governance_total_ms, found.clock_skew_ms) == (0, 0, 0)


def test_a_late_verdict_is_exposed():
    story = Story().received(4).started(10).chunk(60, 0).verdict(75, 70.0).chunk(80, 1).finished(81, 1)
    found = story.cleared(90, 1, final=True).closed(92).sent(93).latency()

    assert dict(found.parts)["rails"] == pytest.approx(15)
    assert found.first_text_ms == pytest.approx(75)
    assert found.governance_first_text_ms == pytest.approx(15)
    assert found.hidden_rails_ms == pytest.approx(55)
    assert found.governance_total_ms == 0


def test_a_gated_answer_waits_for_safety_at_both_ends():
    gated = Delivery(mode="gated")
    story = Story(delivery=gated).received(4).started(10, delivery=gated).verdict(20, 12.0)
    story = story.chunk(60, 0).cleared(66, 0).chunk(80, 1).finished(81, 1).cleared(95, 1, final=True).closed(97)
    found = story.sent(98).latency()

    parts = dict(found.parts)
    assert parts["hold-back"] == pytest.approx(6)
    assert parts["decode"] == pytest.approx(14)
    assert parts["final hold-back"] == pytest.approx(15)
    assert (found.governance_first_text_ms, found.governance_total_ms) == pytest.approx((6, 15))


def test_text_is_held_back_by_the_time_of_the_log():
    held = Delivery(mode="windowed", hold_ms=30)
    story = Story(delivery=held).received(4).started(10, delivery=held).verdict(20, 12.0)
    story = story.chunk(60, 0).chunk(80, 1).chunk(95, 2).finished(96, 2).cleared(99, 2, final=True).closed(100)
    found = story.sent(101).latency()

    assert dict(found.parts)["hold-back"] == pytest.approx(35)  # shown by the first event that comes 30 ms later
    assert found.first_text_ms == pytest.approx(95)


def test_an_attempt_that_was_given_up_is_lost_time():
    story = Story().received(4).started(10).verdict(20, 12.0)
    cutover = Cutover(**story.made.about(), attempt=2, trigger="ttft")
    story = story.add(204, cutover).started(210, attempt=2).chunk(260, 0, attempt=2).finished(261, 0, attempt=2)
    found = story.cleared(265, 0, final=True, attempt=2).closed(266).sent(268).latency()

    assert dict(found.parts)["lost attempts"] == pytest.approx(200)
    assert dict(found.parts)["worker"] == pytest.approx(6)
    assert sum(dict(found.parts).values()) == pytest.approx(268)


def test_a_refusal_waits_for_the_rails_alone():
    story = (
        Story()
        .received(4)
        .started(10)
        .chunk(25, 0)
        .verdict(30, 24.0, "deny")
        .chunk(32, 1)
        .closed(33, "denied", cause="denied")
        .sent(35)
    )
    found = story.latency()

    assert dict(found.parts) == pytest.approx({"post": 4, "rails": 26, "close": 3, "delivery": 2})
    assert found.first_text_ms == pytest.approx(30)


def test_speculation_earns_what_the_plain_engine_would_have_taken():
    found = plain_story().latency(plain_token_ms=50.0)

    assert found.decode_ms == pytest.approx(40)
    assert found.plain_decode_ms == pytest.approx(100)  # two later tokens; the first one is part of prefill
    assert found.earned_ms == pytest.approx(60)


def test_an_edges_fast_clock_only_moves_time_from_last_to_first_part():
    true = plain_story().latency()
    story = plain_story()
    request = story.log[0].event
    story.log[0] = LogEvent(story.log[0].appended_ms, _at(request, T0_MS + 2_000))
    sent = story.log[-1].event
    story.log[-1] = LogEvent(story.log[-1].appended_ms, _at(sent, T0_MS + 2_116.5))
    found = story.latency()

    assert found.total_ms == pytest.approx(true.total_ms)
    assert dict(found.parts)["post"] == 0
    assert dict(found.parts)["delivery"] == pytest.approx(7.5)
    assert found.clock_skew_ms == pytest.approx(-1_996)


def test_an_edge_whose_clock_is_behind_is_noticed_too():
    story = plain_story()
    story.log[0] = LogEvent(story.log[0].appended_ms, _at(story.log[0].event, T0_MS - 2_000))
    story.log[-1] = LogEvent(story.log[-1].appended_ms, _at(story.log[-1].event, T0_MS - 2_000 + 116.5))
    found = story.latency()

    assert found.total_ms == pytest.approx(116.5)
    assert dict(found.parts)["delivery"] == pytest.approx(0)
    assert dict(found.parts)["post"] == pytest.approx(7.5)


def test_no_account_before_the_end_or_without_the_request():
    story = plain_story()
    assert latency(story.made.id, story.log[:-2]) is None
    assert latency(story.made.id, story.log[1:]) is None
    assert latency(story.made.id, []) is None


STEPS = st.lists(st.integers(-5, 60), max_size=400)


@settings(max_examples=examples(500))
@given(
    data=st.binary(min_size=150, max_size=400), steps=STEPS, ahead_ms=st.integers(-5_000, 5_000),
    took_ms=st.integers(0, 5_000), plain=st.none() | st.floats(1, 100),
)  # fmt: skip
def test_the_parts_of_any_history_add_up(data, steps, ahead_ms, took_ms, plain):
    at_ms, log = T0_MS, []
    message = (Message(role="user", content="hello"),)
    about = {"request_id": REQUEST_ID, "tenant": "t", "source": "test"}
    log.append(LogEvent(at_ms + 3, Request(**about, at=(at_ms + ahead_ms) * 1_000, messages=message)))
    for index, event in enumerate(grow(data)):
        at_ms += steps[index % len(steps)] if steps else 1
        log.append(LogEvent(at_ms, event))
    sent_us = max(log[0].event.at, (at_ms + ahead_ms + took_ms) * 1_000)
    log.append(
        LogEvent(at_ms, Detached(**about, at=sent_us, connection="c", reason="complete", ops=1, ops_hash="0" * 64))
    )

    found = latency(REQUEST_ID, log, plain_token_ms=plain)

    if found is None:
        return
    assert all(ms >= 0 for _, ms in found.parts)
    assert sum(ms for _, ms in found.parts) == pytest.approx(found.total_ms)
    assert len({name for name, _ in found.parts}) == len(found.parts)
    assert found.total_ms == pytest.approx((sent_us - log[0].event.at) / 1_000)
    before = latency(REQUEST_ID, log[:-1])
    settled = settle([round(ms * 1_000) for _, ms in before.parts], sent_us - log[0].event.at)
    assert [each / 1_000 for each in settled] == pytest.approx([ms for _, ms in found.parts], abs=0.01)
    assert found.governance_first_text_ms <= found.total_ms + 1e-6
    assert found.governance_total_ms <= found.total_ms + 1e-6
    if found.first_text_ms is not None:
        assert found.governance_first_text_ms <= found.first_text_ms + 1e-6
