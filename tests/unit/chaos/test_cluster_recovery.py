"""Test that the chaos campaign never reports a recovery of an answer that did not recover."""

import math

from tests.chaos.cluster.clients import Reader
from tests.chaos.cluster.oracle import DoubleTake
from tests.chaos.cluster.recovery import AFTER_S, Fault, blame, recovery


def fault(kind="kill edge", *, last_s=None, still_open=0, began_ms=0.0, over_ms=None):
    made = Fault(kind, [])
    made.last_s, made.open, made.at_ms, made.over_ms = last_s, still_open, began_ms, over_ms
    return made


def test_what_never_recovered_is_no_quick_recovery():
    (row,) = recovery(
        [*(fault(last_s=1.0 + n) for n in range(8)), fault(still_open=1), fault(last_s=2.0, still_open=3)]
    )
    assert (row.times, row.never, row.p50_s) == (10, 2, 5.0)
    assert row.p99_s == row.longest_s == math.inf


def test_a_fault_without_an_open_answer_says_nothing_of_the_time():
    (row,) = recovery([fault(), fault(), fault(last_s=3.0)])
    assert (row.times, row.never, row.p50_s, row.p99_s) == (3, 0, 3.0, 3.0)
    (row,) = recovery([fault()])
    assert (row.times, row.p50_s) == (1, None)


def test_an_answer_that_was_given_up_has_not_recovered():
    reader, other = Reader("sse"), Reader("sse")
    struck = Fault("kill edge", [reader, other])
    reader.end("lost: nothing for 180 s")
    other.end("closed")
    assert struck.open == 1
    assert recovery([struck])[0].never == 1


def test_an_answer_that_is_over_waits_for_nothing():
    reader = Reader("sse")
    reader.end("closed")
    assert Fault("kill edge", [reader]).open == 0


def test_a_double_take_is_ascribed_to_the_last_possible_fault():
    faults = [
        fault("kill generator", began_ms=1_000, over_ms=5_000),
        fault("kill edge", began_ms=3_000, over_ms=4_000),
        fault("stop generator", began_ms=6_000, over_ms=7_000),
    ]
    late_ms = 7_000 + AFTER_S * 1_000 + 1
    doubles = [DoubleTake("r", 1, at_ms, 1) for at_ms in (500, 4_000, 6_500, late_ms)] + [DoubleTake("r", 1, 6_500, 2)]
    assert blame(doubles, faults) == {
        "no fault": 2, "kill generator": 1, "stop generator": 1, "its record was written twice": 1,
    }  # fmt: skip
