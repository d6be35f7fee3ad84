"""The log of a partition: append, read, search by time, retention and compaction."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from services.broker.protocol import record_batch as batches
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.record_batch import BatchHeader, BatchRejected
from services.broker.storage.compaction import UnreadableBatch, has_record_without_key, newest_offsets, survivors
from services.broker.storage.producer_state import BatchSequence, ProducerStates, RememberedBatch
from services.broker.storage.segment import LogSegment, MemorySegments, SegmentStore
from services.broker.storage.topic_config import TopicConfig

NO_TIME = -1
_STEP_BYTES = 1024 * 1024  # bytes of batches that compaction reads at once
COMPACTION_RETRY_MS = 60_000  # time between a failed compaction and the next


class AppendResult(NamedTuple):
    """The result of appending a batch.

    Attributes:
        offset: Offset of the batch's first record.
        duplicate: Whether the log already had the batch. Then nothing was appended, and ``offset`` is that of the first
            copy.
        time_ms: Timestamp to put into the response, in milliseconds since the epoch. For a new batch, it is the append
            time, or -1 if the topic keeps the client's timestamps. For a duplicate, it is the largest timestamp of
            the first copy.
    """

    offset: int
    duplicate: bool
    time_ms: int = NO_TIME


class TimestampAndOffset(NamedTuple):
    offset: int
    timestamp_ms: int


class PartitionLog:
    """The log of one partition.

    Attributes:
        start: Log start offset.
        end: Log end offset.
        size: Size of all batches, in bytes.
        deleted: Whether the topic was deleted.
    """

    def __init__(self, config: TopicConfig, *, now_ms: int = 0, store: SegmentStore | None = None) -> None:
        self.config = config
        self._store = store if store is not None else MemorySegments()
        self._segments = [self._store.begin(0, now_ms)]
        self._producers = ProducerStates()
        self.start = self.end = 0
        self.size = 0
        self._appended_ms = NO_TIME  # the latest append time of a batch
        self._compacted_end = 0  # end of the compacted segments; closed segments after it are new
        self._compact_from_ms = 0  # no compaction before this time, because the last one failed
        self.deleted = False

    def restore(self, segments: Sequence[LogSegment], producers: ProducerStates, appended_ms: int) -> None:
        self._segments = list(segments)
        self.start, self.end = self._segments[0].base, self._segments[-1].end
        self._producers = producers
        self._appended_ms = appended_ms
        self.size = sum(map(len, segments))

    def close(self) -> None:
        self._segments[-1].seal()
        self._store.keep_state(self.end, self._producers, self._appended_ms)

    def delete(self) -> None:
        self.deleted = True
        # An abandoned fetch session refers to this log for long, and the memory limit does not count it any more.
        self._segments = []

    @property
    def memory_bytes(self) -> int:
        return sum(segment.memory_bytes for segment in self._segments)

    def produce(self, batch: bytes, version: int, now_ms: int) -> AppendResult:
        """Check and append a batch from a client.

        Raises:
            BatchRejected: The batch did not pass a check.
            OSError: The batch cannot be written.
        """
        header = batches.parse(batch)
        if header.size > self.config.max_message_bytes:
            raise BatchRejected(
                ErrorCode.MESSAGE_TOO_LARGE, f"the batch is over max.message.bytes={self.config.max_message_bytes}"
            )
        batches.check_produced(batch, header, version)
        self._check_time(header, now_ms)
        self._check_keys(batch)
        sequence = sequence_of(header)
        verdict = self._producers.check_sequence(sequence)
        if isinstance(verdict, RememberedBatch):
            # As in Kafka, the time of a duplicate is its largest timestamp.
            return AppendResult(verdict.offset, duplicate=True, time_ms=verdict.time_ms)
        if verdict is not ErrorCode.NONE:
            raise BatchRejected(verdict, "the producer's sequence does not continue")
        if not self.config.append_time:
            placed = batches.place(batch, header, self.end, None)
            return AppendResult(self._append(placed, sequence, header.max_timestamp_ms, now_ms), duplicate=False)
        # The timestamps in a partition must not decrease when the clock is set back.
        append_ms = max(now_ms, self._appended_ms)
        placed = batches.place(batch, header, self.end, append_ms)
        offset = self._append(placed, sequence, append_ms, now_ms)
        self._appended_ms = append_ms
        return AppendResult(offset, duplicate=False, time_ms=append_ms)

    def _check_time(self, header: BatchHeader, now_ms: int) -> None:
        if self.config.append_time:
            if header.has_append_time:
                raise BatchRejected(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the append time")
        elif header.max_timestamp_ms > now_ms + self.config.timestamp_after_max_ms:
            raise BatchRejected(
                ErrorCode.INVALID_TIMESTAMP, "a record is dated later than message.timestamp.after.max.ms allows"
            )

    def _check_keys(self, batch: bytes) -> None:
        if not self.config.compacts:
            return
        try:
            without_key = has_record_without_key(batch)
        except UnreadableBatch:
            return  # perhaps its codec is missing; the partition is then not compacted
        if without_key:
            raise BatchRejected(ErrorCode.INVALID_RECORD, "a record of a compacted topic must have a key")

    def begin_segment(self, now_ms: int) -> None:
        """Start a new segment, unless the newest segment is empty."""
        newest = self._segments[-1]
        if newest.end > newest.base:
            fresh = self._store.begin(self.end, now_ms)
            newest.seal()
            self._store.keep_state(self.end, self._producers, self._appended_ms)
            self._segments.append(fresh)

    def _append(self, batch: bytes, sequence: BatchSequence, newest_ms: int, now_ms: int) -> int:
        segment = self._segments[-1]
        if len(segment) + len(batch) > self.config.roll_bytes:
            self.begin_segment(now_ms)
            segment = self._segments[-1]
        offset = segment.end
        if offset == segment.base:
            segment.born_ms = now_ms
        segment.append(batch, offset, sequence.records, newest_ms)
        self.end = segment.end
        self.size += len(batch)
        self._producers.remember(sequence, offset, newest_ms)
        return offset

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Return complete batches of at most `max_bytes` in total. The first one contains `offset`.

        With `at_least_one`, the first batch may be larger than `max_bytes`.

        Raises:
            OSError: The segment file cannot be read.
        """
        assert self.start <= offset <= self.end  # noqa: S101 - the caller checks the range
        if offset == self.end:
            return b""
        return self._segment(offset).read(offset, max_bytes, at_least_one=at_least_one)

    def available(self, offset: int, max_bytes: int) -> int:
        """Estimate how many bytes `read` would return.

        Raises:
            OSError: The segment file cannot be read.
        """
        segment = self._segment(offset)
        # As in Kafka, a fetch from a segment before the newest one need not wait for more bytes.
        return segment.available(offset, max_bytes) if segment is self._segments[-1] else max_bytes

    def _segment(self, offset: int) -> LogSegment:
        newest = self._segments[-1]
        if offset >= newest.base:
            return newest
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1]

    def find_time(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """Return the first record with this timestamp or a later one; None if there is no such record.

        Raises:
            OSError: A segment file cannot be read.
        """
        for segment in self._segments:
            if segment.newest_ms < timestamp_ms:
                continue
            offset = segment.first_batch_from_ms(timestamp_ms)
            while offset is not None and offset < segment.end:
                batch = segment.read(offset, 0, at_least_one=True)
                header = batches.parse(batch)
                found = _first_at_or_after(batch, header, timestamp_ms)
                if found is not None:
                    return found
                # A client may set a largest timestamp in the header that no record has. Continue with the next batch.
                offset += header.span
        return None

    def expire(self, now_ms: int) -> None:
        """Drop the oldest segments until the log is within the topic's retention by size and by age."""
        config = self.config
        if not config.deletes:
            return
        if config.retention_bytes >= 0:
            while len(self._segments) > 1 and self.size - len(self._segments[0]) >= config.retention_bytes:
                self._drop_oldest()
        if config.retention_ms >= 0:
            self._expire_by_time(now_ms)

    def _expire_by_time(self, now_ms: int) -> None:
        config = self.config
        oldest_kept_ms = now_ms - config.retention_ms
        self._drop_older_than(oldest_kept_ms)
        # The newest segment is closed by age too. Otherwise, a topic with few records would keep old records until the
        # segment is full. Deletions come first, because a full disk may have no room for another file.
        newest = self._segments[-1]
        if newest.newest_ms < oldest_kept_ms or now_ms - newest.born_ms > config.retention_ms // 8:
            self.begin_segment(now_ms)
            self._drop_older_than(oldest_kept_ms)

    def _drop_older_than(self, oldest_kept_ms: int) -> None:
        while len(self._segments) > 1 and self._segments[0].newest_ms < oldest_kept_ms:
            self._drop_oldest()

    def compact(self, now_ms: int) -> bool:
        """Compact all segments except the newest. Return false if nothing was done.

        Nothing is done in these cases:

        * The topic's `cleanup.policy` does not contain `compact`.
        * Less than half of the bytes in these segments are new, that is, not compacted yet.
        * A batch is damaged or cannot be decoded.
        * A compaction failed less than `COMPACTION_RETRY_MS` ago.

        Raises:
            OSError: A segment file cannot be read or written.
        """
        closed = self._segments[:-1]
        # A closed segment is new until it is compacted. A compaction starts when the new segments have at least half of
        # the bytes of all closed segments, so each byte is read about twice.
        new_bytes = sum(len(segment) for segment in closed if segment.base >= self._compacted_end)
        if not self.config.compacts or not new_bytes or 2 * new_bytes < sum(map(len, closed)):
            return False
        if now_ms < self._compact_from_ms:
            return False
        try:
            newest = newest_offsets(_batches(closed))
            kept = survivors(_batches(closed), newest, now_ms - self.config.delete_retention_ms)
            before, fresh = sum(map(len, closed)), self._store.replace(closed, kept)
        except UnreadableBatch:
            self._compacted_end = closed[-1].end
            return False
        except OSError:
            self._compact_from_ms = now_ms + COMPACTION_RETRY_MS
            raise
        self._compacted_end = closed[-1].end
        self._segments[: len(closed)] = [fresh]
        self.start = fresh.base
        self.size += len(fresh) - before
        return True

    def drop_oldest_segment(self, now_ms: int) -> bool:
        """Drop the oldest segment regardless of retention. Return false if the log has no records."""
        if len(self._segments) == 1:
            self.begin_segment(now_ms)
        if len(self._segments) == 1:
            return False
        self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        oldest = self._segments[0]
        self._store.forget(oldest)
        del self._segments[0]
        self.start = self._segments[0].base
        self.size -= len(oldest)


def _batches(segments: Sequence[LogSegment]) -> Iterator[bytes]:
    """Yield each batch of these segments.

    Raises:
        UnreadableBatch: A batch is damaged.
    """
    for segment in segments:
        offset = segment.base
        while offset < segment.end:
            data = memoryview(segment.read(offset, _STEP_BYTES, at_least_one=True))
            while data:
                header = _undamaged(data, offset)
                yield bytes(data[: header.size])
                offset += header.span
                data = data[header.size :]


def _undamaged(data: memoryview, offset: int) -> BatchHeader:
    try:
        header = batches.parse(data)
    except BatchRejected as error:
        raise UnreadableBatch(str(error)) from None
    # The compacted batch gets a new checksum, which would hide the damage.
    if header.base_offset != offset or not batches.intact(data, header):
        raise UnreadableBatch("a stored batch is damaged")
    return header


def _first_at_or_after(batch: bytes, header: BatchHeader, timestamp_ms: int) -> TimestampAndOffset | None:
    if not header.record_count:
        return None
    stamps = None if header.has_append_time else batches.timestamps(batch)
    if stamps is None:  # one timestamp for all records, or a batch that cannot be decoded
        stamps = [(header.base_offset, header.max_timestamp_ms)]
    return next((TimestampAndOffset(offset, stamp) for offset, stamp in stamps if stamp >= timestamp_ms), None)


def sequence_of(header: BatchHeader) -> BatchSequence:
    return BatchSequence(header.producer_id, header.producer_epoch, header.base_sequence, header.span)
