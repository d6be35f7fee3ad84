"""Clocks of this process.

``now_us`` and ``now_ms`` return the time of the wall clock. ``steady_us`` is for durations and timers, because changes
of the wall clock do not affect it.
"""

import time
from typing import Final


def now_us() -> int:
    return time.time_ns() // 1_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()


def steady_us() -> int:
    """Return the time of a monotonic clock, in microseconds since the epoch.

    When the process started, this clock was set to the time of the wall clock.
    """
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000
