"""Clocks of this process. Code that makes decisions does not read them, but takes the time as an argument.

``now_us`` and ``now_ms`` are the time of day, for texts that people read and for rough comparisons with the log.
``steady_us`` is for durations and timers, because setting the host's clock does not change it.
"""

import time
from typing import Final


def now_us() -> int:
    return time.time_ns() // 1_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()


def steady_us() -> int:
    """Return the time of day at the start of the process plus the time that has passed on the monotonic clock."""
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000
