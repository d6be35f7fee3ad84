"""The wall clock since the epoch, in the two units of events. Decision code takes the time as an argument instead."""

import time


def now_us() -> int:
    return time.time_ns() // 1_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000
