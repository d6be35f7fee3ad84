"""The wall clock, in the two units events use. Decision code takes the time as an argument instead."""

import time


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1_000


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
