"""From the broker's record batches to events: unpacked, filtered, decoded and counted."""

import time
from collections import Counter
from collections.abc import Iterator
from logging import DEBUG, WARNING
from typing import Any, Final, NamedTuple

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.memory_records import MemoryRecords

from schemas.errors import MalformedEvent, SkippedEvent, UnreadableEvent
from schemas.topics import DEAD
from schemas.trace import is_traceparent
from schemas.wire import KIND_HEADER, TRACE_HEADER, decode, header
from services.bus.records import BROKEN_BATCH, Partition, Received, RecordFilter, StoredRecord, UnreadableRecord
from services.runtime.logging import logger
from services.runtime.metrics import CONSUMED, MALFORMED, SKIPPED, UNWANTED, labelled

_log = logger("bus")

REPEAT_S: Final = 60.0
"""The same kind of error on the same topic is logged at most once in this time."""


class UnpackedRecord(NamedTuple):
    """One step through a partition; reading continues at ``next_offset``.

    ``record`` is aiokafka's (offset, timestamp, key, value, headers), or None when there is none to read; ``broken``
    is the reason why a whole batch, which began at ``first``, cannot be read.
    """

    next_offset: int
    record: Any = None
    broken: str | None = None
    first: int = 0


def unpack(batches: bytes, start: int) -> Iterator[UnpackedRecord]:
    """Yield the records from offset ``start`` on; control batches and compacted gaps only move the offset."""
    memory = MemoryRecords(batches)
    while memory.has_next():
        batch = memory.next_batch()
        end = batch.next_offset
        if end <= start:
            continue  # the broker sends whole batches: the first may begin before the offset asked for
        if not batch.is_control_batch:
            try:
                if not batch.validate_crc():
                    raise CorruptRecordException("checksum does not match")  # noqa: TRY301 - one way out for both
                for record in batch:
                    if record.offset >= start:
                        yield UnpackedRecord(record.offset + 1, record)
            except (CorruptRecordException, UnsupportedCodecError, RuntimeError, ValueError) as error:
                first = max(start, batch.base_offset)
                yield UnpackedRecord(end, None, f"the batch up to offset {end - 1} cannot be unpacked: {error}", first)
        yield UnpackedRecord(end)


class DecodeErrorLog:
    """Logs the first unreadable record of a topic and class at once, and later ones as a count once a minute."""

    def __init__(self) -> None:
        self._logged_at: dict[tuple[str, str], float] = {}
        self._suppressed: Counter[tuple[str, str]] = Counter()

    def line_for(self, partition: Partition, offset: int, error: UnreadableEvent, now_s: float) -> str | None:
        """Return the line to log; None when it is too early to repeat it."""
        topic, number = partition
        subject = (topic, type(error).__name__)
        logged_at = self._logged_at.get(subject)
        if logged_at is not None and now_s - logged_at < REPEAT_S:
            self._suppressed[subject] += 1
            return None
        self._logged_at[subject] = now_s
        more = self._suppressed.pop(subject, 0)
        since = f" (and {more} more since the last such line)" if more else ""
        what = "skipped" if isinstance(error, SkippedEvent) else "malformed"
        return f"{what}: {topic}[{number}] offset {offset}: {str(error)[:200]}{since}"


class RecordDecoder:
    """One reader's decoder.

    Args:
        record_filter: Records for which it returns false are skipped without decoding.
        include_newer: Return records written for a newer reader as ``UnreadableRecord``; else they are only counted.
    """

    def __init__(self, record_filter: RecordFilter | None = None, *, include_newer: bool = False) -> None:
        self._filter = record_filter
        self._include_newer = include_newer
        self._errors = DecodeErrorLog()
        self._consumed: Counter[str] = Counter()
        self._unwanted: Counter[str] = Counter()

    def decode_item(self, partition: Partition, item: UnpackedRecord) -> Received | UnreadableRecord | None:
        """Return the event of one step; None for what is skipped, filtered out, or no record."""
        record = item.record
        if record is None:
            return None if item.broken is None else self._broken(partition, item)
        if self._filter is not None:
            kind = header(record.headers, KIND_HEADER)
            if kind is not None and not self._filter(
                kind, record.key
            ):  # without a kind it is malformed: always reported
                self._unwanted[partition[0]] += 1
                return None
        try:
            event = decode(record.value, record.headers, record.key)
        except UnreadableEvent as error:
            return self._unreadable(partition, record, error)
        self._consumed[partition[0]] += 1
        trace = header(record.headers, TRACE_HEADER) if len(record.headers) > 2 else None
        if trace is not None and not is_traceparent(trace):
            trace = None
        return Received(*partition, record.offset, record.timestamp, event, trace)

    def count(self) -> None:
        """Add the records since the last call to the metrics: one update costs as much as decoding a record."""
        for counts, metric in ((self._consumed, CONSUMED), (self._unwanted, UNWANTED)):
            if counts:
                for topic, number in counts.items():
                    labelled(metric, topic).inc(number)
                counts.clear()

    def _broken(self, partition: Partition, item: UnpackedRecord) -> UnreadableRecord:
        error = MalformedEvent(item.broken)
        self._log_error(partition, item.first, error)
        MALFORMED.labels(partition[0]).inc()
        return UnreadableRecord(*partition, item.first, 0, None, None, (), error)

    def _unreadable(self, partition: Partition, record: Any, error: UnreadableEvent) -> UnreadableRecord | None:
        self._log_error(partition, record.offset, error)
        if not isinstance(error, MalformedEvent):
            SKIPPED.labels(partition[0], type(error).__name__).inc()
            if not self._include_newer:
                return None
        else:
            MALFORMED.labels(partition[0]).inc()
        place = (*partition, record.offset, record.timestamp)
        return UnreadableRecord(*place, record.key, record.value, tuple(record.headers), error)

    def _log_error(self, partition: Partition, offset: int, error: UnreadableEvent) -> None:
        line = self._errors.line_for(partition, offset, error, time.monotonic())
        if line is not None:
            # Every start of a router reads a foreign record on railbus.dead again; `railbus dead list` shows it.
            _log.log(DEBUG if partition[0] == DEAD.name else WARNING, "%s", line)


class RawDecoder:
    """Hands every record over as it is."""

    def __init__(self) -> None:
        self._consumed: Counter[str] = Counter()

    def decode_item(self, partition: Partition, item: UnpackedRecord) -> StoredRecord | None:
        """Return the record of one step, or a placeholder for a batch that cannot be unpacked."""
        record = item.record
        if record is not None:
            self._consumed[partition[0]] += 1
            return StoredRecord(
                *partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
            )
        if item.broken is None:
            return None
        MALFORMED.labels(partition[0]).inc()
        return StoredRecord(*partition, item.first, 0, None, None, ((BROKEN_BATCH, item.broken.encode()),))

    def count(self) -> None:
        """Add the records since the last call to the metrics."""
        for topic, number in self._consumed.items():
            labelled(CONSUMED, topic).inc(number)
        self._consumed.clear()
