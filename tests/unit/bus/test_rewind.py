"""Tests of ``rewind_to_ms``: how far back a service reads a partition that it has gained."""

from hypothesis import given
from hypothesis import strategies as st

from services.bus.groups.rewind import LONGEST_OUTAGE_MS, LONGEST_WORK_MS, rewind_to_ms

NOW = 1_700_000_000_000
WINDOW = 600_000


def test_usually_it_is_the_window() -> None:
    assert rewind_to_ms(NOW, NOW, WINDOW) == NOW - WINDOW


def test_after_an_outage_it_is_the_window_before_the_outage() -> None:
    assert rewind_to_ms(NOW, NOW - 3_600_000, WINDOW) == NOW - 3_600_000 - WINDOW


def test_it_is_bounded_where_nobody_ever_worked() -> None:
    assert rewind_to_ms(NOW, 0, WINDOW) == NOW - LONGEST_OUTAGE_MS


@given(worked=st.integers(0, 2 * NOW), rewind=st.integers(1, 2 * LONGEST_OUTAGE_MS))
def test_it_is_never_less_than_the_window_nor_more_than_the_bound(worked: int, rewind: int) -> None:
    since = rewind_to_ms(NOW, worked, rewind)
    assert NOW - max(LONGEST_OUTAGE_MS, rewind) <= since <= NOW - rewind


def test_work_that_is_open_for_longer_is_read_from_its_beginning() -> None:
    assert rewind_to_ms(NOW, NOW, WINDOW, NOW - 10 * WINDOW) == NOW - 10 * WINDOW
    assert rewind_to_ms(NOW, NOW - WINDOW, WINDOW, NOW - WINDOW - 1) == NOW - 2 * WINDOW


@given(worked=st.integers(0, 2 * NOW), rewind=st.integers(1, 2 * LONGEST_OUTAGE_MS), since=st.integers(0, 2 * NOW))
def test_a_mark_only_moves_it_back_and_not_beyond_the_longest_deadline(worked: int, rewind: int, since: int) -> None:
    plain, marked = rewind_to_ms(NOW, worked, rewind), rewind_to_ms(NOW, worked, rewind, since)
    floor = NOW - max(LONGEST_OUTAGE_MS, rewind) - LONGEST_WORK_MS
    assert marked == min(plain, max(since, floor))
