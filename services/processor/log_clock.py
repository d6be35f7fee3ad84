"""When a record was appended, on the reader's own clock. No I/O, no clock.

A record's timestamp is the broker's time of day (``message.timestamp.type=LogAppendTime``), and the reader's clock may
differ. A record cannot be read before it was appended, and delivery is fast. So the smallest difference between
read time and timestamp, over a broker's records in a time window, is the offset between the two clocks, plus the
shortest delivery time.
"""

from typing import Final

WINDOW_US: Final = 30_000_000
"""Length of a window; the least difference of two windows counts, so that a clock that drifts or is set is followed."""


class LogClock:
    """The clock of one broker."""

    __slots__ = ("_before_us", "_least_us", "_window_ends_us")

    def __init__(self) -> None:
        self._least_us: int | None = None
        self._before_us: int | None = None
        self._window_ends_us = 0

    def appended_us(self, timestamp_ms: int, now_us: int) -> int:
        """Return when a record that is read now was appended; never after now.

        Until a record is read soon after its append, the result may be too late, never too early. So no request misses
        a deadline because of the estimate.
        """
        difference_us = now_us - timestamp_ms * 1_000
        if now_us >= self._window_ends_us:
            self._before_us = self._least_us
            self._least_us = None
            self._window_ends_us = now_us + WINDOW_US
        if self._least_us is None or difference_us < self._least_us:
            self._least_us = difference_us
        before = self._before_us
        skew_us = self._least_us if before is None or before > self._least_us else before
        return timestamp_ms * 1_000 + skew_us
