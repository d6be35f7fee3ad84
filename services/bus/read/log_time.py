"""Estimate what the broker's clock shows, from the timestamps of new records."""

from typing import Final

WINDOW_MS: Final = 10_000
"""Length of a window of time in which ``LogTime`` measures, in milliseconds. Only measurements in the last two windows
count, because clocks drift or are set."""


class LogTime:
    """An estimate of the difference between the clocks of this process and of the broker."""

    # A record is read later than its timestamp. The smallest of the latest delays includes the least time between
    # broker and process.

    __slots__ = ("_before_ms", "_least_ms", "_window_ends_ms")

    def __init__(self) -> None:
        self._least_ms: int | None = None
        self._before_ms: int | None = None
        self._window_ends_ms = 0

    def note(self, timestamp_ms: int, now_ms: int) -> None:
        """Update the estimate with the timestamp of a new record, which this process read at ``now_ms``."""
        # If the record were old, the time since its append would count as a difference of the clocks.
        if timestamp_ms <= 0:
            return
        behind_ms = now_ms - timestamp_ms
        if self._least_ms is None or now_ms >= self._window_ends_ms:
            self._before_ms, self._least_ms = self._least_ms, behind_ms
            self._window_ends_ms = now_ms + WINDOW_MS
        self._least_ms = min(self._least_ms, behind_ms)

    def now_ms(self, now_ms: int) -> int:
        """Convert this process's time to the broker's time, both in milliseconds.

        While the difference between the clocks is unknown, return ``now_ms`` unchanged.
        """
        known = [each for each in (self._least_ms, self._before_ms) if each is not None]
        return now_ms - min(known) if known else now_ms
