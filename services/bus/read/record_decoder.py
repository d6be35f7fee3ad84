import struct
import time
from collections import Counter
from collections.abc import Iterator
from logging import DEBUG, WARNING
from typing import Any, Final, NamedTuple

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from schemas.errors import MalformedEvent, SkippedEvent, UnreadableEvent
from schemas.topics import DEAD
from schemas.wire import KIND_HEADER, decode, decode_as, header, known_kind, traceparent_in
from services.bus.records import BROKEN_BATCH, Partition, Received, RecordFilter, StoredRecord, UnreadableRecord
from services.runtime.compression import without_compression
from services.runtime.logging import logger
from services.runtime.metrics import CONSUMED, MALFORMED, SKIPPED, UNWANTED, labelled

_log = logger("bus")

REPEAT_S: Final = 60.0
"""Minimum time in seconds between two log lines about the same class of error on the same topic."""


_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_COUNTS_FROM: Final = 12


class BrokenBatch(NamedTuple):
    """A batch of records that cannot be unpacked.

    Attributes:
        first: First offset of the batch that was not read: the offset after the last record that could be unpacked, but
            at most the last offset of the batch. If the reader started at a higher offset, that offset.
    """

    first: int
    reason: str


Unpacked = tuple[int, Any]
"""The offset at which reading continues, and the record before that offset: an aiokafka record (with offset, timestamp,
key, value and headers), a ``BrokenBatch``, or None if there is no record to read. A plain tuple is used, because one is
created for each record."""


def unpack(batches: bytes, start: int) -> Iterator[Unpacked]:
    """Yield each record from offset ``start`` on, with the offset after it.

    For a control batch or a compacted gap, yield None with the offset after it.
    """
    memory, at = MemoryRecords(batches), 0
    while memory.has_next():
        batch = memory.next_batch()
        begin, at = at, at + _LENGTH_COUNTS_FROM + _LENGTH.unpack_from(batches, at + _LENGTH_AT)[0]
        end, read_to = batch.next_offset, start
        if end <= start:
            continue  # the broker sends whole batches, so the first may start before the requested offset
        if not batch.is_control_batch:
            try:
                if not batch.validate_crc():
                    raise CorruptRecordException("checksum does not match")  # noqa: TRY301 - handled with the others
                if batch.compression_type:
                    batch = DefaultRecordBatch(without_compression(batches[begin:at]))
                for record in batch:
                    if record.offset >= start:
                        read_to = record.offset + 1
                        yield read_to, record
            except (CorruptRecordException, UnsupportedCodecError, RuntimeError, ValueError) as error:
                first = min(max(read_to, batch.base_offset), end - 1)  # records that were read before are valid
                yield end, BrokenBatch(first, f"the batch up to offset {end - 1} cannot be unpacked: {error}")
        if read_to != end:
            yield end, None


class DecodeErrorLog:
    """Limits log lines about unreadable records to one a minute for each topic and class of error."""

    def __init__(self) -> None:
        self._logged_at: dict[tuple[str, str], float] = {}
        self._suppressed: Counter[tuple[str, str]] = Counter()

    def line_for(self, partition: Partition, offset: int, error: UnreadableEvent, now_s: float) -> str | None:
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
    """Decodes the records of one reader.

    Args:
        record_filter: A function. Records for which the function returns false are skipped without decoding.
        include_newer: Whether to return an ``UnreadableRecord`` for each record that only a newer version of Railbus
            can decode.
    """

    def __init__(self, record_filter: RecordFilter | None = None, *, include_newer: bool = False) -> None:
        self._filter = record_filter
        self._include_newer = include_newer
        self._errors = DecodeErrorLog()
        self._consumed: Counter[str] = Counter()
        self._unwanted: Counter[str] = Counter()

    def decode(self, partition: Partition, record: Any) -> Received | UnreadableRecord | None:
        """Decode an aiokafka record or a ``BrokenBatch``. Return None if the record is to be skipped."""
        if type(record) is BrokenBatch:
            return self._broken(partition, record)
        headers, key = record.headers, record.key
        kind = known_kind(headers)
        if self._filter is not None:
            name = header(headers, KIND_HEADER) if kind is None else kind.name
            if name is not None and not self._filter(name, key):  # a record without a name is malformed: report it
                self._unwanted[partition[0]] += 1
                return None
        try:
            event = decode(record.value, headers, key) if kind is None else decode_as(kind, record.value, key)
        except UnreadableEvent as error:
            return self._unreadable(partition, record, error)
        self._consumed[partition[0]] += 1
        return Received(*partition, record.offset, record.timestamp, event, traceparent_in(headers))

    def count(self) -> None:
        # In bulk, because one update of a metric costs as much as decoding a record.
        for counts, metric in ((self._consumed, CONSUMED), (self._unwanted, UNWANTED)):
            if counts:
                for topic, number in counts.items():
                    labelled(metric, topic).inc(number)
                counts.clear()

    def _broken(self, partition: Partition, batch: BrokenBatch) -> UnreadableRecord:
        error = MalformedEvent(batch.reason)
        self._log_error(partition, batch.first, error)
        MALFORMED.labels(partition[0]).inc()
        return UnreadableRecord(*partition, batch.first, 0, None, None, (), error)

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
            # A router reads railbus.dead at each start. `railbus dead list` shows its unreadable records.
            _log.log(DEBUG if partition[0] == DEAD.name else WARNING, "%s", line)


class RawDecoder:
    def __init__(self) -> None:
        self._consumed: Counter[str] = Counter()

    def decode(self, partition: Partition, record: Any) -> StoredRecord:
        if type(record) is BrokenBatch:
            MALFORMED.labels(partition[0]).inc()
            return StoredRecord(*partition, record.first, 0, None, None, ((BROKEN_BATCH, record.reason.encode()),))
        self._consumed[partition[0]] += 1
        return StoredRecord(
            *partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
        )

    def count(self) -> None:
        for topic, number in self._consumed.items():
            labelled(CONSUMED, topic).inc(number)
        self._consumed.clear()
