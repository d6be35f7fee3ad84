"""Test that the router applies deadlines correctly if the hosts' clocks are 4 s apart."""

from collections import Counter

import pytest

from tests.chaos.clocks import LATE_TTFT_MS, late_ms, play

SKEW_S = 2.0
EARLIEST_MS = -100
"""The earliest accepted time of a cutover, relative to its deadline. The clocks of the hosts differ by far more: 4 s.
The limit is not 0, because the broker's own clock may be set back during the test, by 17 ms on one machine. Until a
router notices that, it acts too early by as much (``log_clock.py``)."""


@pytest.mark.slow
async def test_no_deadline_is_moved_by_the_time_of_day_of_a_host(tmp_path):
    times, soon, never, wrong = await play(tmp_path, skew_s=SKEW_S, healthy=24, late=8, at_once=2)
    assert Counter(times.closed[request_id] for request_id in soon) == {"completed": 24}
    assert wrong.total() == 0
    late = late_ms(times, never)
    assert len(late) == 8
    assert late[0] >= EARLIEST_MS, f"{LATE_TTFT_MS} ms are counted from when the broker had the request"
