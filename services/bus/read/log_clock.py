"""Compute when a record was appended, by the reader's clock. No I/O; the caller passes the current time.

A record's timestamp is the time of the broker's wall clock (``message.timestamp.type=LogAppendTime``). The reader's
clock may differ from the broker's clock by any amount. The computation uses three facts:

1. The read time of a record minus its timestamp is the delay from append to read, plus the difference between the two
   clocks. The delay is never negative and often almost zero. So if the read time minus the timestamp is computed for
   many records, the smallest result is almost the difference between the clocks.
2. A fetch response often contains all records that the broker had. If so, every later record was appended after the
   fetch request was sent.
3. Within a partition, records are in the order in which they were appended.
"""

from collections.abc import Iterable
from typing import Final

from services.bus.records import Partition

WINDOW_US: Final = 10_000_000
"""Length of a time window in microseconds. The clock offset is the smallest difference between read time and timestamp
in the current window and the previous one. Older windows do not count, so the offset follows a clock that drifts."""

_RESOLUTION_US: Final = 1_000
"""Resolution of the records' timestamps, in microseconds. The timestamps are whole milliseconds, rounded down."""

_UNKNOWN_US: Final = 2**63


class BrokerOffset:
    """An estimate of how far one broker's clock is behind the reader's clock.

    It is the same for all partitions that the broker leads.
    """

    __slots__ = ("before_us", "least_us", "window_ends_us")

    def __init__(self) -> None:
        self.least_us = _UNKNOWN_US
        self.before_us = _UNKNOWN_US
        self.window_ends_us = 0

    def observe(self, timestamp_ms: int, now_us: int) -> None:
        if timestamp_ms > 0:  # the record is on the log, so it was appended before ``now_us``
            self.least_us = min(self.least_us, now_us - timestamp_ms * 1_000)


class LogClock:
    """Converts timestamps of one partition's records to the reader's clock. Records must be passed in log order.

    Attributes:
        offset: Estimate of how far the clock of the partition's present leader is behind the reader's clock.
        since_us: All records that were appended before this time have been read. The time is by the reader's clock, in
            microseconds; 0 if unknown.
    """

    __slots__ = ("_begun_us", "_newest_ms", "offset", "since_us")

    def __init__(self, offset: BrokerOffset) -> None:
        self.since_us = 0
        self._newest_ms = 1  # a record without a time has 0 or less
        self.follow(offset)

    def follow(self, offset: BrokerOffset) -> None:
        """Use this clock offset from now on. Call this when another broker becomes the partition's leader."""
        self.offset = offset
        # The offset when reading began. It counts until the partition was read to its end once, because records that
        # are read long after their append say nothing about the offset.
        self._begun_us = min(offset.least_us, offset.before_us)

    def appended_us(self, timestamp_ms: int, now_us: int) -> int:
        """Convert the timestamp of a record to the reader's clock. ``now_us`` is when the record was read."""
        # The result may be too late, by at most the shortest delivery time of a record in two windows. It may be too
        # early, by less than the resolution of timestamps plus the drift of the clocks in two windows, or since the
        # reader last read the partition to its end. After the
        # broker's clock was set back, results may be too early by up to the size of that step, but never before
        # ``since_us``. This ends with the first record whose timestamp is lower than that of the previous record, or
        # whose result would be before ``since_us``.
        offset = self.offset
        if timestamp_ms < self._newest_ms:
            if timestamp_ms <= 0:
                return now_us
            # This record follows the last one, so the broker's clock was set back, or another broker leads now.
            back_us = (self._newest_ms - timestamp_ms) * 1_000
            offset.least_us += back_us
            offset.before_us += back_us
            self._begun_us += back_us
        self._newest_ms = timestamp_ms
        stamp_us = timestamp_ms * 1_000
        difference_us = now_us - stamp_us
        since_us = self.since_us
        # Of a partition with a backlog, all new measurements are too large, so the old ones stay.
        if now_us >= offset.window_ends_us and (not since_us or now_us - since_us < WINDOW_US):
            offset.before_us = offset.least_us
            offset.least_us = difference_us
            offset.window_ends_us = now_us + WINDOW_US
        least_us, before_us = offset.least_us, offset.before_us
        if difference_us < least_us:
            offset.least_us = least_us = difference_us
        if before_us < least_us:  # noqa: PLR1730 - each record pays for a call
            least_us = before_us
        if not since_us and self._begun_us < least_us:
            least_us = self._begun_us
        appended_us = stamp_us + least_us
        if appended_us >= since_us:
            return appended_us
        if appended_us + _RESOLUTION_US > since_us:
            return since_us
        offset.least_us, offset.before_us = difference_us, _UNKNOWN_US  # the broker's clock was set back
        return now_us


class LogClocks:
    """The ``LogClock`` of each partition of one reader.

    Partitions with the same leader share one ``BrokerOffset``: the difference between the leader's clock and the
    reader's clock. They can share it, because the leader's clock sets the timestamps of all their records.
    """

    def __init__(self) -> None:
        self._offsets: dict[int | None, BrokerOffset] = {}  # by the leader's node id
        self._clocks: dict[Partition, LogClock] = {}

    def clock(self, partition: Partition, leader: int | None, since_us: int) -> LogClock:
        offset = self._offset(leader)
        clock = self._clocks.get(partition)
        if clock is None:
            clock = self._clocks[partition] = LogClock(offset)
        if clock.offset is not offset:
            clock.follow(offset)
        clock.since_us = since_us
        return clock

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._clocks.pop(partition, None)

    def observe(self, leader: int | None, timestamp_ms: int, now_us: int) -> None:
        self._offset(leader).observe(timestamp_ms, now_us)

    def _offset(self, leader: int | None) -> BrokerOffset:
        return self._offsets.get(leader) or self._offsets.setdefault(leader, BrokerOffset())
