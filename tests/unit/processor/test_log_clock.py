"""When records were appended, on a clock that is off by anything and on a way that takes its time."""

from hypothesis import given
from hypothesis import strategies as st

from services.processor.log_clock import WINDOW_US, LogClock

ARRIVALS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(300, 80_000)), min_size=1, max_size=60)
"""Of each record: how long after the one before it is appended, and how long it is on its way, in microseconds."""


@given(st.integers(-3_600_000_000, 3_600_000_000), ARRIVALS)
def test_however_far_apart_clocks_are_a_record_is_late_by_its_way_at_most(skew_us: int, arrivals: list) -> None:
    clock, true_us, read_us, least_way = LogClock(), 10**15, 0, None
    for gap_us, way_us in arrivals:
        true_us += gap_us
        read_us = max(read_us, true_us + way_us)  # in the order of the log
        timestamp_ms = (true_us + skew_us) // 1_000
        found = clock.appended_us(timestamp_ms, read_us)
        least_way = min(least_way or way_us + 10**9, read_us - true_us)
        assert found <= read_us
        assert true_us - 1_000 <= found <= true_us + least_way + 1_000


def test_a_pause_does_not_make_what_was_appended_in_it_look_new() -> None:
    clock, start = LogClock(), 10**15
    clock.appended_us(start // 1_000, start + 500)
    woken = start + 15_000_000
    found = [clock.appended_us((start + at) // 1_000, woken) - start for at in (1_000_000, 2_000_000, 14_000_000)]
    assert found == [1_000_500, 2_000_500, 14_000_500]


def test_a_clock_that_was_set_is_followed_within_two_windows() -> None:
    clock, now = LogClock(), 10**15
    clock.appended_us(now // 1_000, now)
    off = 5_000_000  # from now on the broker's clock is that much behind
    for _ in range(3):
        now += WINDOW_US
        found = clock.appended_us((now - off) // 1_000, now)
    assert abs(found - now) <= 1_000


def test_without_a_fresh_record_nothing_looks_older_than_it_may_be() -> None:
    clock, now = LogClock(), 10**15
    hour_ago_ms = (now - 3_600_000_000) // 1_000
    assert clock.appended_us(hour_ago_ms, now) == now
    assert now - clock.appended_us(now // 1_000, now) <= 1_000
    assert now - clock.appended_us(hour_ago_ms, now) >= 3_599_000_000
