"""Test that the steady clock of a process does not follow changes of the host's clock."""

import time

from services.runtime.clock import now_us, steady_us


def test_setting_the_hosts_clock_does_not_move_the_steady_clock(monkeypatch) -> None:
    before_us, day_us = steady_us(), now_us()
    hour_ns = 3_600_000_000_000
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - hour_ns)
    assert now_us() < day_us
    assert steady_us() >= before_us
