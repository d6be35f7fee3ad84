"""Clocks of this process. Decision code takes the time as an argument instead.

``now_us`` and ``now_ms`` are the time of day: for what people read, and for what is compared with the log roughly.
``steady_us`` is for everything that is measured or due: whoever sets the host's clock does not move it.
"""

import time
from typing import Final


def now_us() -> int:
    return time.time_ns() // 1_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()


def steady_us() -> int:
    """Return the time of day as it was when the process began, moved on by the monotonic clock."""
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000
