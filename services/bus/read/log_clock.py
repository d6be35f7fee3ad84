"""When a record was appended, on the reader's own clock. No I/O, no clock.

A record's timestamp is the broker's time of day (``message.timestamp.type=LogAppendTime``), and the reader's clock may
differ by anything. Three facts bound the difference. A record is read after it was appended, and delivery is fast: so
the smallest difference between read time and timestamp, over a broker's records in a time window, is the offset between
the two clocks, plus the shortest delivery time. What a complete answer of the broker did not have was appended after
that answer was asked for. Within a partition, records are in the order in which they were appended.
"""

from collections.abc import Iterable
from typing import Final

from services.bus.records import Partition

WINDOW_US: Final = 10_000_000
"""Length of a window; the least difference of two windows counts, so that a clock that drifts is followed."""

_RESOLUTION_US: Final = 1_000
"""Timestamps are whole milliseconds, rounded down."""

_UNKNOWN_US: Final = 2**63


class BrokerOffset:
    """How far a broker's clock is behind the reader's: what all partitions that it leads have in common."""

    __slots__ = ("before_us", "least_us", "window_ends_us")

    def __init__(self) -> None:
        self.least_us = _UNKNOWN_US
        self.before_us = _UNKNOWN_US
        self.window_ends_us = 0

    def observe(self, timestamp_ms: int, now_us: int) -> None:
        """Learn from a record that is on the log now, and is not being read."""
        if timestamp_ms > 0:
            self.least_us = min(self.least_us, now_us - timestamp_ms * 1_000)


class LogClock:
    """The clock of one partition, for a reader that reads it in order.

    Attributes:
        offset: Of the broker that leads the partition now.
        since_us: A time before which nothing was appended that is not read yet; 0 while none is known.
    """

    __slots__ = ("_newest_ms", "offset", "since_us")

    def __init__(self, offset: BrokerOffset) -> None:
        self.offset = offset
        self.since_us = 0
        self._newest_ms = 1  # a record without a time has 0 or less

    def appended_us(self, timestamp_ms: int, now_us: int) -> int:
        """Return when a record that is read now was appended; never after now.

        The result is late by the way of the quickest record in two windows at most. It is early by less than the
        resolution of timestamps and the clocks' drift in two windows. When the broker's clock is set back, it is
        early by the step at most, never before ``since_us``, and only until the contradiction shows.
        """
        offset = self.offset
        if timestamp_ms < self._newest_ms:
            if timestamp_ms <= 0:
                return now_us
            # The clock was set back, or leads from another broker: this record followed the last one.
            back_us = (self._newest_ms - timestamp_ms) * 1_000
            offset.least_us += back_us
            offset.before_us += back_us
        self._newest_ms = timestamp_ms
        stamp_us = timestamp_ms * 1_000
        difference_us = now_us - stamp_us
        if now_us >= offset.window_ends_us:
            offset.before_us = offset.least_us
            offset.least_us = difference_us
            offset.window_ends_us = now_us + WINDOW_US
        least_us, before_us = offset.least_us, offset.before_us
        if difference_us < least_us:
            offset.least_us = least_us = difference_us
        appended_us = stamp_us + (before_us if before_us < least_us else least_us)  # noqa: FURB136 - each record pays
        if appended_us >= self.since_us:
            return appended_us
        if appended_us + _RESOLUTION_US > self.since_us:
            return self.since_us
        offset.least_us, offset.before_us = difference_us, _UNKNOWN_US  # the clock was set back: begin anew
        return now_us


class LogClocks:
    """The clocks of all partitions that one reader reads. Partitions with the same leader share its offset."""

    def __init__(self) -> None:
        self._offsets: dict[int | None, BrokerOffset] = {}  # by the leader's node id
        self._clocks: dict[Partition, LogClock] = {}

    def clock(self, partition: Partition, leader: int | None, since_us: int) -> LogClock:
        """Return the partition's clock, for the leader that it has now and with the newest ``LogClock.since_us``."""
        offset = self._offset(leader)
        clock = self._clocks.get(partition)
        if clock is None:
            clock = self._clocks[partition] = LogClock(offset)
        clock.offset, clock.since_us = offset, since_us
        return clock

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Forget the clocks of partitions whose next record does not follow the last one that was read."""
        for partition in partitions:
            self._clocks.pop(partition, None)

    def observe(self, leader: int | None, timestamp_ms: int, now_us: int) -> None:
        """Learn the leader's offset from a record that is on the log now, and is not being read."""
        self._offset(leader).observe(timestamp_ms, now_us)

    def _offset(self, leader: int | None) -> BrokerOffset:
        return self._offsets.get(leader) or self._offsets.setdefault(leader, BrokerOffset())
