"""When a trace is exported: once, when it is complete, and never for ever awaited."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bus import Received
from services.tracer import core as module
from services.tracer.core import LINGER_US, OVERLAP_US, ExportTrace, TracerCore
from services.tracer.service import wanted
from tests.support.bus import topic_of
from tests.support.examples import examples
from tests.unit.stream.test_latency import T0_MS, Story, plain_story

T0 = T0_MS * 1_000
OPTED_OUT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


def record(each, number=0, offset=0, traceparent=None):
    return Received(topic_of(each.event).name, number, offset, each.appended_ms, each.event, traceparent)


def feed(core, story, number=0, traceparent=None):
    """Give a story to the core; return what it exports."""
    found = []
    for offset, each in enumerate(story.log):
        at_us = each.appended_ms * 1_000
        found += core.read(record(each, number, offset, traceparent), at_us, at_us)
    return found


@pytest.fixture
def core():
    made = TracerCore(total_max_ms=60_000)
    made.gained(0)
    assert list(made.caught_up(0, T0 - 1, T0)) == []
    return made


def test_a_request_is_exported_when_its_client_has_it_all(core):
    story = plain_story()
    (effect,) = feed(core, story)

    assert isinstance(effect, ExportTrace)
    assert effect.trace.spans[0].attributes["gen_ai.response.id"] == story.made.id
    assert (core.open, core.kept_events) == (0, 0)
    assert core.alarm_us(0, T0) == T0 + 4_000 + 120_000_000  # only its id is remembered
    assert feed(core, story) == []


def test_the_receipt_may_come_before_the_close(core):
    story = plain_story()
    story.log[-1], story.log[-2] = story.log[-2], story.log[-1]
    story.log[-2] = story.log[-2]._replace(appended_ms=T0_MS + 112)

    assert len(feed(core, story)) == 1


def test_without_a_receipt_it_waits_a_while(core):
    story = plain_story()
    del story.log[-1]
    assert feed(core, story) == []
    due = core.alarm_us(0, T0)
    assert due == T0 + 113_000 + LINGER_US
    assert list(core.tick(0, due - 1, due)) == []
    (effect,) = core.tick(0, due, due)
    assert [s.name for s in effect.trace.spans if "railbus.part" in s.attributes][-1] == "close"


def test_a_close_that_does_not_hold_ends_nothing(core):
    story = Story().received(4).started(10).verdict(20, 1.0).chunk(30, 0)
    story = story.closed(40, "failed", cause="no_first_token").chunk(50, 1).finished(51, 1)
    assert feed(core, story) == []
    assert list(core.tick(0, T0 + 60_000_000, T0)) == []
    rest = Story()
    rest.made = story.made
    rest = rest.cleared(60, 1, final=True).closed(62).sent(63)
    (effect,) = feed(core, rest)
    assert effect.trace.spans[0].attributes["railbus.outcome"] == "completed"


def test_a_client_that_wants_no_trace_gets_none(core):
    assert feed(core, plain_story(), traceparent=OPTED_OUT) == []
    assert core.unsampled == 1
    assert core.kept_events == 0


def test_what_is_never_closed_is_forgotten(core):
    story = plain_story()
    del story.log[-2:]
    feed(core, story)
    due = core.alarm_us(0, T0)
    assert list(core.tick(0, due, due)) == []
    assert (core.unclosed, core.open, core.kept_events, core.alarm_us(0, due)) == (1, 0, 0, None)


def test_of_what_was_closed_before_only_the_newest_is_exported():
    core = TracerCore()
    core.gained(0)
    old, new = plain_story(), plain_story()
    assert feed(core, old) == feed(core, new) == []
    at_us = T0 + 113_000
    core._partitions[0].closing[old.made.id] -= OVERLAP_US
    (effect,) = core.caught_up(0, at_us + 1, at_us + 1)
    assert effect.trace.spans[0].attributes["gen_ai.response.id"] == new.made.id
    assert (core.open, core.kept_events) == (0, 0)


def test_a_lost_partition_is_forgotten(core):
    story = plain_story()
    del story.log[-2:]
    feed(core, story)
    core.lost(0)
    assert (core.open, core.kept_events) == (0, 0)


def test_too_many_events_cost_the_oldest_request_its_trace(core, monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 20)
    stories = [plain_story() for _ in range(4)]
    for story in stories:
        end = story.log[-2:]
        del story.log[-2:]
        feed(core, story)
        story.log = end
    assert core.crowded == 2
    assert core.kept_events <= 20
    assert [len(feed(core, story)) for story in stories] == [0, 0, 1, 1]


def test_a_share_of_the_requests_is_read_at_all():
    half = wanted(0.5)
    keys = [plain_story().made.id.encode() for _ in range(400)]
    assert 100 < sum(half("Chunk", key) for key in keys) < 300
    assert all(wanted(1.0)("Chunk", key) for key in keys)
    assert not any(wanted(0.0)("Chunk", key) for key in keys)
    assert not wanted(1.0)("Account", keys[0])


@settings(max_examples=examples(100))
@given(order=st.permutations(range(6)), cut=st.integers(0, 11), repeat=st.booleans())
def test_interleaved_requests_are_exported_once_each(order, cut, repeat):
    core = TracerCore(total_max_ms=60_000)
    core.gained(0)
    core.caught_up(0, T0 - 1, T0)
    stories = [plain_story() for _ in range(6)]
    found = []
    for part in (slice(None, cut), slice(cut, None)):
        for index in order:
            whole = stories[index].log
            stories[index].log = whole[part] if not repeat else whole[: part.stop or None]
            found += feed(core, stories[index])
            stories[index].log = whole
    found += core.tick(0, T0 + 30_000_000, T0)
    ids = [each.trace.spans[0].attributes["gen_ai.response.id"] for each in found]
    assert sorted(ids) == sorted(story.made.id for story in stories)
    assert core.kept_events == 0
