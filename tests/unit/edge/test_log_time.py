"""Test that the edge computes an answer's age from the broker's clock, not from its own clock or ``Request.at``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.requests import Deadlines, Message, Request
from services.bus.read.log_time import WINDOW_MS, LogTime
from services.edge.log.lookup import FoundRequest, is_too_old

HOUR_MS = 3_600_000


def request(at_ms: int) -> Request:
    return Request(
        request_id="018bcfe5-6800-7000-8000-000000000000", tenant="acme", at=at_ms * 1_000, source="app",
        messages=(Message(role="user", content="hello"),), deadlines=Deadlines(total_ms=1_000),
    )  # fmt: skip


@pytest.mark.parametrize("said_ms", [0, 10 * HOUR_MS, 90 * HOUR_MS])
def test_what_the_writer_says_of_the_time_does_not_count(said_ms: int) -> None:
    found = FoundRequest(request(said_ms), 10 * HOUR_MS)
    assert not is_too_old(found, HOUR_MS, 11 * HOUR_MS + 1_000)
    assert is_too_old(found, HOUR_MS, 11 * HOUR_MS + 1_001)


@given(st.integers(-HOUR_MS, HOUR_MS), st.lists(st.tuples(st.integers(1, WINDOW_MS), st.integers(0, 500)), min_size=1))
def test_the_brokers_time_is_known_within_the_quickest_delivery(ahead_ms: int, records: list[tuple[int, int]]) -> None:
    clock, log_ms = LogTime(), 10 * HOUR_MS
    ways = []
    for gap_ms, way_ms in records:
        log_ms += gap_ms
        clock.note(log_ms, log_ms + way_ms + ahead_ms)
        ways.append(way_ms)
        late_ms = log_ms - clock.now_ms(log_ms + ahead_ms)
        assert min(ways) <= late_ms <= ways[-1]


def test_it_follows_a_clock_that_is_set() -> None:
    clock = LogTime()
    clock.note(10 * HOUR_MS, 10 * HOUR_MS)
    for step in range(4):
        clock.note(9 * HOUR_MS + step * WINDOW_MS, 10 * HOUR_MS + step * WINDOW_MS)
    assert clock.now_ms(10 * HOUR_MS + 3 * WINDOW_MS) == 9 * HOUR_MS + 3 * WINDOW_MS


def test_without_a_record_the_own_clock_counts() -> None:
    clock = LogTime()
    clock.note(0, 5)  # a record without a time
    assert clock.now_ms(7) == 7
