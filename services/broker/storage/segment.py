"""The interface of a partition's log segments, and an implementation that keeps them in memory."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from services.broker.storage.compaction import Survivor
from services.broker.storage.producer_state import ProducerStates

INDEX_BYTES_PER_BATCH = 24  # three 64-bit numbers, counted towards the memory limit


class LogSegment(Protocol):
    """Consecutive batches, from the offset `base` up to `end` (exclusive).

    If the segment is on disk, every method except `seal` may raise `OSError`.
    """

    base: int
    end: int
    born_ms: int  # time at which its first batch was appended

    def __len__(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def newest_ms(self) -> int:
        """Return the largest timestamp; -1 if the segment is empty."""

    def append(self, batch: bytes, base: int, records: int, max_timestamp_ms: int) -> None:
        """Append a batch whose offset is already set. If this raises `OSError`, the segment is unchanged."""

    def available(self, offset: int, max_bytes: int) -> int:
        """Estimate how many bytes `read` would return. The result is never too small."""

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Return complete batches of at most `max_bytes` in total. The first one contains `offset`.

        With `at_least_one`, the first batch may be larger than `max_bytes`.
        """

    def first_batch_from_ms(self, timestamp_ms: int) -> int | None:
        """Return the base offset of the first batch with this timestamp or a later one; None if there is none."""

    def seal(self) -> None:
        """Mark the segment as complete. No batch can be appended afterwards."""


class SegmentStore(Protocol):
    """Creates, replaces and deletes the segments of a partition, in memory or on disk."""

    def begin(self, base: int, now_ms: int) -> LogSegment: ...

    def forget(self, segment: LogSegment) -> None: ...

    def replace(self, old: Sequence[LogSegment], kept: Iterable[Survivor]) -> LogSegment:
        """Replace the consecutive segments `old` by one segment with the batches `kept`.

        Nothing may be appended to the new segment. If this method raises `OSError`, nothing has changed.
        """

    def keep_state(self, end: int, producers: ProducerStates, appended_ms: int) -> None:
        """Store the state of the idempotent producers and the latest append time. Errors are logged, not raised.

        `end` is the log end offset for which the state and the append time are valid.
        """


class MemorySegments:
    def begin(self, base: int, now_ms: int) -> LogSegment:
        return Segment(base, now_ms)

    def forget(self, segment: LogSegment) -> None: ...

    def replace(self, old: Sequence[LogSegment], kept: Iterable[Survivor]) -> LogSegment:
        segment = Segment(old[0].base, old[0].born_ms)
        for batch in kept:
            segment.append(*batch)
        return segment

    def keep_state(self, end: int, producers: ProducerStates, appended_ms: int) -> None: ...


class Segment:
    __slots__ = ("_data", "_newest_ms", "_offsets", "_positions", "_size", "base", "born_ms", "end")

    def __init__(self, base: int, born_ms: int, buffer: bytearray | None = None) -> None:
        self.base = base
        self.end = base
        self.born_ms = born_ms
        self._data = bytearray() if buffer is None else buffer  # its old content is overwritten
        self._size = 0  # number of bytes of the buffer that contain batches
        self._offsets = array("q")  # base offset of each batch
        self._positions = array("q")  # position of each batch in the buffer
        self._newest_ms = array("q")  # largest timestamp up to this batch; never decreases, for binary search

    def __len__(self) -> int:
        return self._size

    @property
    def memory_bytes(self) -> int:
        return len(self._data) + INDEX_BYTES_PER_BATCH * len(self._offsets)

    @property
    def newest_ms(self) -> int:
        return self._newest_ms[-1] if self._newest_ms else -1

    def append(self, batch: bytes, base: int, records: int, max_timestamp_ms: int) -> None:
        assert base == self.end  # noqa: S101 - batches of a segment are contiguous
        self._newest_ms.append(max(self.newest_ms, max_timestamp_ms))
        self._offsets.append(base)
        self._positions.append(self._size)
        stop = self._size + len(batch)
        if stop <= len(self._data):
            self._data[self._size : stop] = batch
        else:
            del self._data[self._size :]
            self._data += batch
        self._size = stop
        self.end = base + records

    def release(self) -> bytearray:
        """Return the buffer, so that another segment can reuse it. This segment must not be used afterwards."""
        return self._data

    def _span(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[int, int]:
        first = bisect_right(self._offsets, offset) - 1
        start = self._positions[first]
        if self._size - start <= max_bytes:
            return start, self._size
        beyond = bisect_right(self._positions, start + max_bytes) - 1
        if beyond <= first:
            if not at_least_one:
                return start, start
            beyond = first + 1
        return start, self._positions[beyond] if beyond < len(self._positions) else self._size

    def available(self, offset: int, max_bytes: int) -> int:
        start, stop = self._span(offset, max_bytes, at_least_one=True)
        return stop - start

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        start, stop = self._span(offset, max_bytes, at_least_one=at_least_one)
        with memoryview(self._data) as view:
            return view[start:stop].tobytes()

    def first_batch_from_ms(self, timestamp_ms: int) -> int | None:
        index = bisect_left(self._newest_ms, timestamp_ms)
        return self._offsets[index] if index < len(self._offsets) else None

    def seal(self) -> None: ...
