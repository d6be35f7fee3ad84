"""From the broker's records to events: filtered, decoded, counted. What cannot be read is logged once, then rarely."""

import time
from collections import Counter
from typing import Any, Final

from schemas.errors import MalformedEvent, SkippedEvent, UnreadableEvent
from schemas.trace import is_traceparent
from schemas.wire import KIND_HEADER, TRACE_HEADER, decode, header
from services.bus.fetch_wire import Partition
from services.bus.records import Received, Unread, Wants
from services.bus.unpack import Item
from services.runtime.logging import logger
from services.runtime.metrics import CONSUMED, MALFORMED, SKIPPED, UNWANTED

_log = logger("bus")

REPEAT_S: Final = 60.0
"""The same complaint about the same topic is logged at most once in this time."""


class Complaints:
    """Says the first unreadable record of a topic and class at once, later ones with their number once a minute."""

    def __init__(self) -> None:
        self._said_at: dict[tuple[str, str], float] = {}
        self._unsaid: Counter[tuple[str, str]] = Counter()

    def about(self, partition: Partition, offset: int, error: UnreadableEvent, now_s: float) -> str | None:
        """The line to log, or None when it is too early to repeat it."""
        topic, number = partition
        subject = (topic, type(error).__name__)
        said_at = self._said_at.get(subject)
        if said_at is not None and now_s - said_at < REPEAT_S:
            self._unsaid[subject] += 1
            return None
        self._said_at[subject] = now_s
        more = self._unsaid.pop(subject, 0)
        since = f" (and {more} more since the last such line)" if more else ""
        what = "skipped" if isinstance(error, SkippedEvent) else "malformed"
        return f"{what}: {topic}[{number}] offset {offset}: {str(error)[:200]}{since}"


class Intake:
    """One reader's way from records to events.

    Args:
        wants: Records it says no to are passed over without decoding.
        newer: Records written for a newer reader are handed over as ``Unread``, not only counted.
    """

    def __init__(self, wants: Wants | None = None, *, newer: bool = False) -> None:
        self._wants = wants
        self._newer = newer
        self._complaints = Complaints()
        self._consumed: Counter[str] = Counter()
        self._unwanted: Counter[str] = Counter()

    def take(self, partition: Partition, item: Item) -> Received | Unread | None:
        """The event of a step through a partition; None for what is skipped, unwanted, or no record at all."""
        record = item.record
        if record is None:
            return None if item.broken is None else self._broken(partition, item)
        if self._wants is not None:
            kind = header(record.headers, KIND_HEADER)
            if kind is not None and not self._wants(kind, record.key):  # without a kind it is malformed: always told
                self._unwanted[partition[0]] += 1
                return None
        try:
            event = decode(record.value, record.headers, record.key)
        except UnreadableEvent as error:
            return self._unread(partition, record, error)
        self._consumed[partition[0]] += 1
        trace = header(record.headers, TRACE_HEADER) if len(record.headers) > 2 else None
        if trace is not None and not is_traceparent(trace):
            trace = None
        return Received(*partition, record.offset, record.timestamp, event, trace)

    def count(self) -> None:
        """Adds what was taken since the last time to the metrics: once for many records, because it costs as much."""
        for counts, metric in ((self._consumed, CONSUMED), (self._unwanted, UNWANTED)):
            if counts:
                for topic, number in counts.items():
                    metric.labels(topic).inc(number)
                counts.clear()

    def _broken(self, partition: Partition, item: Item) -> Unread:
        error = MalformedEvent(item.broken)
        self._complain(partition, item.first, error)
        MALFORMED.labels(partition[0]).inc()
        return Unread(*partition, item.first, 0, None, None, (), error)

    def _unread(self, partition: Partition, record: Any, error: UnreadableEvent) -> Unread | None:
        self._complain(partition, record.offset, error)
        if not isinstance(error, MalformedEvent):
            SKIPPED.labels(partition[0], type(error).__name__).inc()
            if not self._newer:
                return None
        else:
            MALFORMED.labels(partition[0]).inc()
        place = (*partition, record.offset, record.timestamp)
        return Unread(*place, record.key, record.value, tuple(record.headers), error)

    def _complain(self, partition: Partition, offset: int, error: UnreadableEvent) -> None:
        line = self._complaints.about(partition, offset, error, time.monotonic())
        if line is not None:
            _log.warning("%s", line)
