"""The broker's time of day, learned from the timestamps of new records. No I/O, no clock.

A time that is compared with a record's timestamp must be this one, because the host's clock may be wrong.
"""

from typing import Final

WINDOW_MS: Final = 10_000
"""Length of a window; the least difference of two counts, so that a clock that drifts or is set is followed."""


class LogTime:
    """How far the broker's clock is behind the reader's; unknown before the first record was read."""

    __slots__ = ("_before_ms", "_least_ms", "_window_ends_ms")

    def __init__(self) -> None:
        self._least_ms: int | None = None
        self._before_ms: int | None = None
        self._window_ends_ms = 0

    def note(self, timestamp_ms: int, now_ms: int) -> None:
        """Learn the offset from a record that was read as soon as it was appended."""
        if timestamp_ms <= 0:
            return
        behind_ms = now_ms - timestamp_ms
        if self._least_ms is None or now_ms >= self._window_ends_ms:
            self._before_ms, self._least_ms = self._least_ms, behind_ms
            self._window_ends_ms = now_ms + WINDOW_MS
        self._least_ms = min(self._least_ms, behind_ms)

    def now_ms(self, now_ms: int) -> int:
        """Return the broker's time; the reader's own before it has read anything."""
        known = [each for each in (self._least_ms, self._before_ms) if each is not None]
        return now_ms - min(known) if known else now_ms
