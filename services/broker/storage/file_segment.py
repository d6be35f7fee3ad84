"""A segment in a file.

The newest batches of a partition are also in memory. Older batches are read from the file.
"""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

from services.broker.storage.error_log import log_storage_error
from services.broker.storage.segment import Segment
from services.broker.storage.segment_index import (
    BatchPlace,
    DamagedBatch,
    FileMark,
    SegmentIndex,
    StoredIndex,
    batches_in,
)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"

MAX_OPEN_SEGMENTS: Final = 64
"""Maximum number of sealed segments that are open for reads. Beyond it, the least recently read segment is closed.

The index of a segment of 16 MiB takes 24 KiB of memory.
"""

MAX_TAIL_BYTES: Final = 1024 * 1024
MIN_TAIL_BYTES: Final = 16 * 1024


class TailBudget:
    """Divides memory equally among all partitions. Each partition uses its share for its newest batches."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.partitions = 0

    @property
    def bytes_each(self) -> int:
        """Return each partition's share of the budget in bytes, between 16 KiB and 1 MiB."""
        return min(MAX_TAIL_BYTES, max(MIN_TAIL_BYTES, self._total_bytes // max(1, self.partitions)))


class LogTail:
    __slots__ = ("_budget", "_half_bytes", "_older", "_younger")

    def __init__(self, base: int, budget: TailBudget) -> None:
        self._budget = budget
        self._half_bytes = budget.bytes_each // 2
        self._older = self._younger = Segment(base, 0)

    @property
    def base(self) -> int:
        return self._older.base

    @property
    def memory_bytes(self) -> int:
        older = 0 if self._older is self._younger else self._older.memory_bytes
        return older + self._younger.memory_bytes

    def append(self, batch: bytes, base: int, records: int, max_timestamp_ms: int) -> None:
        size = len(self._younger)
        if size and size + len(batch) > self._half_bytes:
            self._swap(base)
        self._younger.append(batch, base, records, max_timestamp_ms)

    def _swap(self, base: int) -> None:
        self._half_bytes = self._budget.bytes_each // 2
        buffer = None if self._older is self._younger else self._older.release()
        # Reuse the old buffer unless it is too large now. A newly allocated buffer is slower at its first use.
        if buffer is not None and len(buffer) > 2 * self._half_bytes:
            buffer = None
        self._older, self._younger = self._younger, Segment(base, 0, buffer)

    def available(self, offset: int, max_bytes: int) -> int:
        if offset >= self._younger.base:
            return self._younger.available(offset, max_bytes)
        return min(max_bytes, self._older.available(offset, max_bytes) + len(self._younger))

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        if offset >= self._younger.base:
            return self._younger.read(offset, max_bytes, at_least_one=at_least_one)
        data = self._older.read(offset, max_bytes, at_least_one=at_least_one)
        if len(data) < self._older.available(offset, len(self._older)):
            return data  # cut at the limit, so no later batch may follow
        return data + self._younger.read(self._younger.base, max_bytes - len(data), at_least_one=False)


class OpenSegment(NamedTuple):
    file: int
    sparse: SegmentIndex


class OpenSegments:
    """A cache of the open files and indexes of segments to which nothing is appended any more."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, OpenSegment] = OrderedDict()

    def get(self, segment: "FileSegment") -> OpenSegment:
        found = self._open.get(segment.path)
        if found is not None:
            self._open.move_to_end(segment.path)
            return found
        index = segment.load_index()
        found = self._open[segment.path] = OpenSegment(os.open(segment.path, os.O_RDONLY), index)
        if len(self._open) > MAX_OPEN_SEGMENTS:
            self.close(next(iter(self._open)))
        return found

    def close(self, path: Path) -> None:
        found = self._open.pop(path, None)
        if found is not None:
            os.close(found.file)

    def close_all(self) -> None:
        for path in list(self._open):
            self.close(path)


class FileSegment:
    """A segment in the file `path`. Methods that read or write may raise `OSError`."""

    def __init__(self, path: Path, base: int, born_ms: int, opened: OpenSegments, budget: TailBudget) -> None:
        self.path = path
        self.base = base
        self.end = base
        self.born_ms = born_ms
        self.newest_ms = -1
        self._size = 0
        self._opened = opened
        self._budget = budget
        self._file: int | None = None  # open for appends, until the segment is sealed
        self._index: SegmentIndex | None = SegmentIndex()  # None once the segment is sealed
        self._tail: LogTail | None = LogTail(base, budget)  # None once the segment is sealed

    @classmethod
    def stored(
        cls, path: Path, base: int, found: StoredIndex, now_ms: int, opened: OpenSegments, budget: TailBudget
    ) -> "FileSegment":
        segment = cls(path, base, now_ms, opened, budget)
        first_ms = found.sparse.first_ms
        # A client's clock may be ahead, so the first timestamp may be in the future.
        segment.born_ms = now_ms if first_ms is None else min(now_ms, first_ms)
        segment.end, segment.newest_ms, segment._size = found.end, found.newest_ms, found.mark.size
        segment._index = segment._tail = None
        return segment

    def continue_with(self, index: SegmentIndex) -> None:
        """Let a segment that was loaded from disk accept batches again. `index` is the index of the segment."""
        self._index = index
        self._tail = LogTail(self.end, self._budget)

    def __len__(self) -> int:
        return self._size

    @property
    def memory_bytes(self) -> int:
        if self._tail is None or self._index is None:
            return 0
        return self._tail.memory_bytes + self._index.memory_bytes

    def open_for_append(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._file

    def append(self, batch: bytes, base: int, records: int, max_timestamp_ms: int) -> None:
        """Write a batch at the end of the file. If this raises `OSError`, the file is unchanged."""
        assert base == self.end  # noqa: S101 - batches of a segment are contiguous
        assert self._index is not None  # noqa: S101 - not sealed
        assert self._tail is not None  # noqa: S101
        file = self._file if self._file is not None else self.open_for_append()
        written, size = 0, len(batch)
        try:
            while written < size:
                written += os.pwrite(file, batch[written:] if written else batch, self._size + written)
        except OSError:
            os.ftruncate(file, self._size)
            raise
        self.newest_ms = max(self.newest_ms, max_timestamp_ms)
        self._index.note(base, self._size, self.newest_ms)
        self._tail.append(batch, base, records, max_timestamp_ms)
        self._size += size
        self.end = base + records

    def available(self, offset: int, max_bytes: int) -> int:
        tail = self._tail
        if tail is not None and offset >= tail.base:
            return tail.available(offset, max_bytes)
        return len(self._read_file(offset, max_bytes, at_least_one=True))

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        tail = self._tail
        if tail is not None and offset >= tail.base:
            return tail.read(offset, max_bytes, at_least_one=at_least_one)
        return self._read_file(offset, max_bytes, at_least_one=at_least_one)

    def first_batch_from_ms(self, timestamp_ms: int) -> int | None:
        if timestamp_ms > self.newest_ms:
            return None
        file, index = self._reading()
        begin, stop = index.stretch_of_time(timestamp_ms, self._size)
        found = batches_in(_pread(file, stop - begin, begin))
        return next((each.base for each in found if each.max_timestamp_ms >= timestamp_ms), None)

    def seal(self) -> None:
        """Write the index to disk and close the file. No batch can be appended afterwards."""
        index, file = self._index, self._file
        self._index = self._tail = self._file = None
        if index is None or file is None:  # the index is on disk already, or there are no batches
            return
        try:
            self.write_index(index, mark_of(os.fstat(file)))
        except OSError as error:
            log_storage_error(str(self.path), error)
        os.close(file)

    def write_index(self, index: SegmentIndex, mark: FileMark) -> None:
        self.path.with_suffix(INDEX_SUFFIX).write_bytes(index.encode(self.end, self.newest_ms, mark))

    def load_index(self) -> SegmentIndex:
        """Return the index of a sealed segment. If the stored index cannot be used, rebuild it from the batches."""
        found = read_index(self.path)
        if found is not None and found.end == self.end and found.mark.size == self._size:
            return found.sparse
        index, newest_ms = SegmentIndex(), -1
        for place in batches_in(self.path.read_bytes()):
            newest_ms = max(newest_ms, place.max_timestamp_ms)
            index.note(place.base, place.begin, newest_ms)
        return index

    def close(self) -> None:
        self._opened.close(self.path)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _reading(self) -> OpenSegment:
        if self._index is not None:
            return OpenSegment(self.open_for_append(), self._index)
        return self._opened.get(self)

    def _read_file(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        file, index = self._reading()
        begin, stop = index.stretch(offset, self._size)
        # The first batch ends before `stop`, so `max_bytes` more bytes always reach the limit.
        data = _pread(file, min(self._size - begin, stop - begin + max_bytes), begin)
        first = _holding(data, offset)
        limit = first.begin + max_bytes
        if begin + limit >= self._size:
            return data[first.begin :] if first.begin else data
        if first.stop > limit:
            return data[first.begin : first.stop] if at_least_one else b""
        from_entry = max(first.begin, index.position_up_to(begin + limit) - begin)
        last = from_entry  # the batch at this position may be only partly in `data`
        for place in batches_in(data, from_entry):
            if place.stop > limit:
                last = place.begin
                break
            last = place.stop
        return data[first.begin : last]


def _holding(data: bytes, offset: int) -> BatchPlace:
    found = next((place for place in batches_in(data) if place.end > offset), None)
    if found is None or found.base > offset:
        raise DamagedBatch("a stored batch is damaged")
    return found


def _pread(file: int, size: int, position: int) -> bytes:
    data = os.pread(file, size, position)
    if len(data) < size:
        raise DamagedBatch("a segment file is shorter than it was")
    return data


def read_index(path: Path) -> StoredIndex | None:
    """Return the stored index of a segment file; None if the index is missing or damaged."""
    try:
        return SegmentIndex.decode(path.with_suffix(INDEX_SUFFIX).read_bytes())
    except OSError:
        return None


def mark_of(found: os.stat_result) -> FileMark:
    return FileMark(found.st_size, found.st_mtime_ns)
