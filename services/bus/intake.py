"""From the broker's records to events: filtered, decoded, counted. What cannot be read is logged once, then rarely."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from schemas.errors import MalformedEvent, SkippedEvent, UnreadableEvent
from schemas.trace import is_traceparent
from schemas.wire import KIND_HEADER, TRACE_HEADER, decode, header
from services.bus.records import Received, Unread, Wants
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

    def about(self, record: Any, error: UnreadableEvent, now_s: float) -> str | None:
        """The line to log, or None when it is too early to repeat it."""
        subject = (record.topic, type(error).__name__)
        said_at = self._said_at.get(subject)
        if said_at is not None and now_s - said_at < REPEAT_S:
            self._unsaid[subject] += 1
            return None
        self._said_at[subject] = now_s
        more = self._unsaid.pop(subject, 0)
        since = f" (and {more} more since the last such line)" if more else ""
        what = "skipped" if isinstance(error, SkippedEvent) else "malformed"
        return f"{what}: {record.topic}[{record.partition}] offset {record.offset}: {str(error)[:200]}{since}"


class Intake:
    """One reader's way from records to events."""

    def __init__(self, wants: Wants | None = None) -> None:
        self._wants = wants
        self._complaints = Complaints()

    def take(self, topic: str, records: Iterable[Any]) -> list[Received | Unread]:
        """The events of one partition's records, in order; skipped and unwanted ones are left out."""
        kept: list[Received | Unread] = []
        unwanted = malformed = 0
        for record in records:
            if self._wants is not None and not self._wanted(record):
                unwanted += 1
            elif (read := self._read(record)) is not None:
                kept.append(read)
                malformed += isinstance(read, Unread)
        if len(kept) > malformed:
            CONSUMED.labels(topic).inc(len(kept) - malformed)
        if unwanted:
            UNWANTED.labels(topic).inc(unwanted)
        return kept

    def _wanted(self, record: Any) -> bool:
        """A record without a kind is malformed, and that is always told."""
        kind = header(record.headers, KIND_HEADER)
        return kind is None or self._wants is None or self._wants(kind, record.key)

    def _read(self, record: Any) -> Received | Unread | None:
        try:
            event = decode(record.value, record.headers, record.key)
        except UnreadableEvent as error:
            return self._unread(record, error)
        trace = header(record.headers, TRACE_HEADER) if len(record.headers) > 2 else None
        if trace is not None and not is_traceparent(trace):
            trace = None
        return Received(record.topic, record.partition, record.offset, record.timestamp, event, trace)

    def _unread(self, record: Any, error: UnreadableEvent) -> Unread | None:
        line = self._complaints.about(record, error, time.monotonic())
        if line is not None:
            _log.warning("%s", line)
        if not isinstance(error, MalformedEvent):
            SKIPPED.labels(record.topic, type(error).__name__).inc()
            return None
        MALFORMED.labels(record.topic).inc()
        at = (record.topic, record.partition, record.offset, record.timestamp)
        return Unread(*at, record.key, record.value, record.headers, error)
