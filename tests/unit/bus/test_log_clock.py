"""Test the computed append times of records. Clocks may differ, drift or be adjusted, and delivery takes time."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from services.bus.read.log_clock import WINDOW_US, BrokerOffset, LogClock, LogClocks

ARRIVALS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(300, 80_000)), min_size=1, max_size=60)
"""For each record: the time since the previous append, and the time from append to read, in microseconds."""

MS = 1_000
SECOND = 1_000_000
START = 10**15
DRIFT_PPM = 100
DRIFT_US = 2 * (2 * WINDOW_US + 5 * SECOND) * DRIFT_PPM // 10**6
"""How far two drifting clocks can move apart in two windows and a pause, in microseconds."""


def log_clock() -> LogClock:
    return LogClock(BrokerOffset())


@given(st.integers(-3_600_000_000, 3_600_000_000), ARRIVALS)
def test_however_far_apart_clocks_are_a_record_is_late_by_its_way_at_most(skew_us: int, arrivals: list) -> None:
    clock, true_us, read_us, least_way = log_clock(), START, 0, None
    for gap_us, way_us in arrivals:
        true_us += gap_us
        read_us = max(read_us, true_us + way_us)  # in the order of the log
        timestamp_ms = (true_us + skew_us) // 1_000
        found = clock.appended_us(timestamp_ms, read_us)
        least_way = min(least_way or way_us + 10**9, read_us - true_us)
        assert found <= read_us
        assert true_us - 1_000 <= found <= true_us + least_way + 1_000


class Turn(NamedTuple):
    """One fetch of a partition: the request, an adjustment of the broker's clock, appends, and the response.

    Attributes:
        idle_us: Time from the request to the adjustment.
        gaps_us: For each appended record, the time since the previous append. The first gap begins at the adjustment.
        way_us: Time from the last append until the response is read.
        step_us: How far the broker's clock is set ahead; negative if it is set back, 0 if it is not adjusted.
    """

    idle_us: int
    gaps_us: list[int]
    way_us: int
    step_us: int
    partition: int


steps = st.one_of(st.just(0), st.just(0), st.integers(-3_600 * SECOND, 3_600 * SECOND), st.integers(-3_000, 3_000))
turns = st.builds(
    Turn,
    st.integers(0, 600 * MS) | st.integers(0, 5 * SECOND),
    st.lists(st.integers(0, 300 * MS), max_size=4),
    st.integers(200, 60 * MS),
    steps,
    st.integers(0, 1),
)
drifts = st.integers(-DRIFT_PPM, DRIFT_PPM)


@given(st.integers(-(10**12), 10**12), drifts, drifts, st.lists(turns, max_size=60))
def test_steps_and_drift_make_no_record_look_new_or_much_older(
    skew_us: int, broker_ppm: int, reader_ppm: int, history: list[Turn]
) -> None:
    """The append time that is computed for a record is never later than the time at which the record was read.

    The computed time may be earlier than the true append time. The error is at most the drift between the clocks of
    broker and reader, plus 1 ms, because timestamps are whole milliseconds. After the broker's clock was adjusted, the
    error may be larger. But the computed time is then not before the time at which the previous fetch request was sent.
    """
    offset = BrokerOffset()
    clocks = LogClock(offset), LogClock(offset)
    now_us, was_set = START, False
    for turn in history:
        asked_us = now_us
        now_us += turn.idle_us
        skew_us += turn.step_us
        was_set |= turn.step_us != 0
        clock = clocks[turn.partition]
        appended = []
        for gap_us in turn.gaps_us:
            now_us += gap_us
            broker_us = now_us + skew_us + (now_us - START) * broker_ppm // 10**6
            appended.append((broker_us // 1_000, now_us))
        now_us += turn.way_us
        read_us = now_us + (now_us - START) * reader_ppm // 10**6
        for timestamp_ms, true_us in appended:
            reader_us = true_us + (true_us - START) * reader_ppm // 10**6
            found = clock.appended_us(timestamp_ms, read_us)
            assert found <= read_us
            earliest_us = clock.since_us if was_set else reader_us - MS - DRIFT_US
            assert found >= min(reader_us, earliest_us)
        for each in clocks:  # this answer was whole: what follows is appended after it was asked for
            each.since_us = asked_us + (asked_us - START) * reader_ppm // 10**6


@given(st.integers(-(10**12), -10 * MS) | st.integers(10 * MS, 10**12), st.integers(200, 4 * MS))
def test_a_brokers_clock_step_ends_with_the_record_after_a_whole_answer(step_us: int, way_us: int) -> None:
    clock = log_clock()
    now_us = START
    for _ in range(20):
        now_us += 100 * MS
        clock.since_us = now_us - 100 * MS
        clock.appended_us(now_us // 1_000, now_us + way_us)
    skew_us = step_us
    for turn in range(20):
        now_us += 100 * MS
        clock.since_us = now_us - 5 * MS
        found = clock.appended_us((now_us + skew_us) // 1_000, now_us + way_us)
        assert now_us - 5 * MS <= found <= now_us + way_us, turn
        assert found >= now_us - MS


def test_where_time_goes_back_a_record_follows_the_one_before() -> None:
    """A record's computed append time is not before the previous record's, even if its timestamp is lower."""
    offset = BrokerOffset()
    offset.observe((START - 2 * SECOND) // 1_000, START)  # the newest record, after the clock was set back
    clock = LogClock(offset)
    before = clock.appended_us((START - 100 * MS) // 1_000, START)
    after = clock.appended_us((START - 2 * SECOND) // 1_000, START)
    assert after >= before


def test_one_record_dated_ahead_does_not_make_all_others_look_old() -> None:
    """One record with a timestamp in the future does not make all later records look old.

    A topic may have such a record if it has not always had ``LogAppendTime``: without it, writers set timestamps.
    """
    clock = log_clock()
    clock.appended_us(START // 1_000, START + 500)
    clock.appended_us((START + 3_600 * SECOND) // 1_000, START + 1_000)
    now = START + SECOND
    assert now - clock.appended_us((now - 500) // 1_000, now) <= SECOND


def test_a_batch_without_a_time_changes_nothing() -> None:
    clock = log_clock()
    clock.appended_us(START // 1_000, START + 500)
    assert clock.appended_us(0, START + 700) == START + 700
    assert clock.appended_us(START // 1_000 + 1, START + 2_000) == START + 1_500


def test_a_pause_does_not_make_what_was_appended_in_it_look_new() -> None:
    clock = log_clock()
    clock.appended_us(START // 1_000, START + 500)
    woken = START + 15_000_000
    found = [clock.appended_us((START + at) // 1_000, woken) - START for at in (1_000_000, 2_000_000, 14_000_000)]
    assert found == [1_000_500, 2_000_500, 14_000_500]


def test_a_set_clock_is_followed_in_two_windows_without_a_whole_answer() -> None:
    clock, now = log_clock(), START
    clock.appended_us(now // 1_000, now)
    off = 5_000_000  # from now on the broker's clock is that much behind
    for _ in range(3):
        now += WINDOW_US
        found = clock.appended_us((now - off) // 1_000, now)
    assert abs(found - now) <= 1_000


def test_without_a_fresh_record_nothing_looks_older_than_it_may_be() -> None:
    clock = log_clock()
    hour_ago_ms = (START - 3_600_000_000) // 1_000
    assert clock.appended_us(hour_ago_ms, START) == START


def test_the_newest_record_says_how_old_the_others_are() -> None:
    offset = BrokerOffset()
    offset.observe(START // 1_000, START + 500)
    hour_ago_ms = (START - 3_600_000_000) // 1_000
    assert START - LogClock(offset).appended_us(hour_ago_ms, START + 700) >= 3_599_000_000


def test_partitions_of_one_leader_share_what_is_known_of_its_clock():
    clocks, ahead_ms = LogClocks(), 60_000
    clocks.observe(1, START // 1_000 + ahead_ms, START)
    first, second, other = (clocks.clock(("t", n), leader, 0) for n, leader in enumerate((1, 1, 2)))
    assert first.offset is second.offset
    assert first.offset is not other.offset
    assert second.appended_us(START // 1_000 + ahead_ms, START + 5_000) == START
    assert other.appended_us(START // 1_000, START + 5_000) == START + 5_000


def test_a_partition_keeps_its_clock_until_other_records_follow():
    clocks = LogClocks()
    clock = clocks.clock(("t", 0), 1, 0)
    assert clocks.clock(("t", 0), 2, 7) is clock, "it moved to another leader"
    assert clock.since_us == 7
    clocks.forget([("t", 0)])
    assert clocks.clock(("t", 0), 2, 0) is not clock


def test_a_log_that_is_read_again_for_long_stays_old() -> None:
    clocks = LogClocks()
    clocks.observe(1, START // MS, START)  # the newest record
    for second in range(60):  # an hour of log in a minute
        appended = START - (3_600 - 60 * second) * SECOND
        found = clocks.clock(("t", 0), 1, 0).appended_us(appended // MS, START + second * SECOND + 1)
        assert found <= appended + SECOND


def test_what_waits_on_the_log_stays_old() -> None:
    clocks, now = LogClocks(), START
    for _ in range(30):  # the reader keeps up
        now += SECOND
        clocks.clock(("t", 0), 1, now - SECOND // 10).appended_us(now // MS, now)
    put = since = now
    for _ in range(60):  # then sixty records are appended at once, and one a second is read
        now += SECOND
        assert clocks.clock(("t", 0), 1, since).appended_us(put // MS, now) <= put + SECOND
