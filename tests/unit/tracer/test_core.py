"""Test when a request's trace is exported.

It is exported once its account is on the log and a client was sent the whole answer. If no receipt says that the whole
answer was sent, the trace is exported ``LINGER_US`` after the account.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from services.bus import Received
from services.jobs.ids import line_request_id, new_batch_id
from services.tracer import core as module
from services.tracer.core import LINGER_US, MEMORY_US, OVERLAP_US, ExportTrace, TracerCore
from services.tracer.service import wanted
from tests.support.bus import topic_of
from tests.support.examples import examples
from tests.support.router_accounts import router_account
from tests.unit.stream.test_latency import T0_MS, plain_story

T0 = T0_MS * 1_000
OPTED_OUT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


CLOSED_US = T0 + 113_000
"""Time at which the account of ``plain_story`` is appended to the log."""


class Books:
    """The events about one request that the tracer reads: the ``Account``, and the client's receipt (``Detached``)."""

    def __init__(self, story=None):
        story = story or plain_story()
        self.id = story.made.id
        self.receipt = story.log[-1].event
        self.account = router_account(self.id, story.log[:-1])


def record(event, at_us, number=0, traceparent=None):
    return Received(topic_of(event).name, number, 0, at_us // 1_000, event, traceparent)


def feed(core, *events, at_us=CLOSED_US, number=0, traceparent=None):
    """Let the core read events, all of them at the time ``at_us``. Return the traces that it exports."""
    return [effect for event in events for effect in core.read(record(event, at_us, number, traceparent), at_us, at_us)]


@pytest.fixture
def core():
    made = TracerCore()
    made.gained(0)
    assert list(made.caught_up(0, T0 - 1, T0)) == []
    return made


def test_a_request_is_exported_when_its_client_has_it_all(core):
    books = Books()
    assert feed(core, books.account) == []
    assert core.open == 1
    (effect,) = feed(core, books.receipt)

    assert isinstance(effect, ExportTrace)
    assert effect.trace.spans[0].attributes["gen_ai.response.id"] == books.id
    assert core.open == 0
    assert core.alarm_us(0, T0) == CLOSED_US + MEMORY_US  # only its id is remembered
    assert feed(core, books.account, books.receipt) == []
    assert list(core.tick(0, CLOSED_US + MEMORY_US, T0)) == []
    assert (core.remembered, core.unclosed) == (0, 0)


def test_the_receipt_may_come_before_the_account(core):
    books = Books()

    assert len(feed(core, books.receipt, books.account)) == 1


def test_without_a_receipt_it_waits_a_while(core):
    assert feed(core, Books().account) == []
    due = core.alarm_us(0, T0)
    assert due == CLOSED_US + LINGER_US
    assert list(core.tick(0, due - 1, due)) == []
    (effect,) = core.tick(0, due, due)
    assert [s.name for s in effect.trace.spans if "railbus.part" in s.attributes][-1] == "close"


def test_a_client_that_left_and_one_that_came_back_are_one_request(core):
    books = Books()
    gone = structs.replace(books.receipt, reason="gone", exposed_tokens=9)
    assert feed(core, gone, books.account) == []
    (effect,) = feed(core, books.receipt)
    assert effect.trace.spans[0].attributes["railbus.exposed_tokens"] == 0


def test_a_client_that_wants_no_trace_gets_none(core):
    books = Books()
    assert feed(core, books.account, books.receipt, traceparent=OPTED_OUT) == []
    assert (core.unsampled, core.open) == (1, 0)


def test_an_account_of_an_older_router_gives_no_trace(core):
    books = Books()
    assert feed(core, structs.replace(books.account, request=None), books.receipt) == []
    assert (core.incomplete, core.open) == (1, 0)


def test_a_receipt_whose_account_never_comes_is_forgotten(core):
    feed(core, Books().receipt)
    due = core.alarm_us(0, T0)
    assert list(core.tick(0, due, due)) == []
    assert (core.unclosed, core.open, core.remembered, core.alarm_us(0, due)) == (1, 0, 0, None)


def test_of_what_was_closed_before_only_the_newest_is_exported():
    core = TracerCore()
    core.gained(0)
    old, new = Books(), Books()
    assert feed(core, old.account, old.receipt, at_us=CLOSED_US - OVERLAP_US) == []
    assert feed(core, new.account, new.receipt) == []
    (effect,) = core.caught_up(0, CLOSED_US + 1, CLOSED_US + 1)
    assert effect.trace.spans[0].attributes["gen_ai.response.id"] == new.id
    assert core.open == 0


def test_after_a_partition_was_gained_the_newest_trace_is_exported_first():
    core = TracerCore()
    core.gained(0)
    books = [Books() for _ in range(3)]
    for number, each in enumerate(books):
        assert feed(core, each.account, each.receipt, at_us=CLOSED_US + number) == []
    found = core.caught_up(0, CLOSED_US + 3, CLOSED_US + 3)
    ids = [each.trace.spans[0].attributes["gen_ai.response.id"] for each in found]
    assert ids == [each.id for each in reversed(books)]


def test_a_lost_partition_is_forgotten(core):
    feed(core, Books().account)
    core.lost(0)
    assert (core.open, core.remembered) == (0, 0)


def test_too_many_requests_cost_the_oldest_its_trace(core, monkeypatch):
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    books = [Books() for _ in range(4)]
    feed(core, *(each.account for each in books))
    assert (core.crowded, core.remembered) == (2, 2)
    assert [len(feed(core, each.receipt)) for each in reversed(books)] == [1, 1, 0, 0]


def test_a_share_of_the_requests_is_read_at_all():
    half = wanted(0.5)
    keys = [plain_story().made.id.encode() for _ in range(400)]
    assert 100 < sum(half("Account", key) for key in keys) < 300
    assert all(wanted(1.0)("Account", key) for key in keys)
    assert not any(wanted(0.0)("Account", key) for key in keys)
    assert not wanted(1.0)("Chunk", keys[0])
    assert not wanted(1.0)("Attached", keys[0])


@settings(max_examples=examples(100))
@given(order=st.permutations([*range(6), *range(6), *range(3)]), first=st.lists(st.booleans(), min_size=6, max_size=6))
def test_interleaved_requests_are_exported_once_each(order, first):
    core = TracerCore()
    core.gained(0)
    core.caught_up(0, T0 - 1, T0)
    books = [Books() for _ in range(6)]
    left = [
        [b.account, b.receipt, b.account] if f else [b.receipt, b.account, b.receipt]
        for b, f in zip(books, first, strict=True)
    ]
    found = []
    for index in order:
        found += feed(core, left[index].pop(0))
    found += core.tick(0, T0 + 30_000_000, T0)
    ids = [each.trace.spans[0].attributes["gen_ai.response.id"] for each in found]
    assert sorted(ids) == sorted(each.id for each in books)
    assert core.open == 0


def test_a_share_of_a_jobs_requests_is_read():
    job = new_batch_id(T0_MS, 7)
    keys = [line_request_id(job, line, 1).encode() for line in range(2_000)]
    assert 100 < sum(wanted(0.1)("Account", key) for key in keys) < 300


def test_a_trace_that_waits_beyond_the_memory_of_its_request_is_due_later():
    core = TracerCore()
    core.gained(0)
    core.caught_up(0, T0, T0)
    books = Books()
    feed(core, structs.replace(books.receipt, reason="gone"), at_us=T0)
    closed_us = T0 + MEMORY_US - 2_000_000
    feed(core, books.account, at_us=closed_us)
    now = T0 + MEMORY_US
    assert list(core.tick(0, now, now)) == []
    assert core.alarm_us(0, now) == closed_us + LINGER_US
    assert len(core.tick(0, closed_us + LINGER_US, now)) == 1
    assert core.remembered == 0
