"""A segment: a run of record batches in one buffer, with an index to find them by offset and by time."""

from array import array
from bisect import bisect_left, bisect_right

INDEX_BYTES_PER_BATCH = 24  # three 64-bit numbers, counted towards the memory bound


class Segment:
    """Batches from offset `base` up to, not including, `end`."""

    __slots__ = ("_data", "_newest_ms", "_offsets", "_positions", "base", "born_ms", "end")

    def __init__(self, base: int, born_ms: int) -> None:
        self.base = base
        self.end = base
        self.born_ms = born_ms  # when its first batch came
        self._data = bytearray()
        self._offsets = array("q")  # base offset of each batch
        self._positions = array("q")  # where it begins in the buffer
        self._newest_ms = array("q")  # largest timestamp up to and including it, so that it can be searched

    def __len__(self) -> int:
        return len(self._data)

    @property
    def memory_bytes(self) -> int:
        """What it costs to keep."""
        return len(self._data) + INDEX_BYTES_PER_BATCH * len(self._offsets)

    @property
    def newest_ms(self) -> int:
        """The largest timestamp in it; -1 while it is empty."""
        return self._newest_ms[-1] if self._newest_ms else -1

    def append(self, batch: bytes | bytearray, base: int, records: int, max_timestamp_ms: int) -> None:
        """Add a batch whose offset is already its own."""
        assert base == self.end  # noqa: S101 - batches of a segment are contiguous
        self._newest_ms.append(max(self.newest_ms, max_timestamp_ms))
        self._offsets.append(base)
        self._positions.append(len(self._data))
        self._data += batch
        self.end = base + records

    def span(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[int, int]:
        """Where the whole batches from the one that holds `offset` on lie; the first however large it is, if asked."""
        first = bisect_right(self._offsets, offset) - 1
        start = self._positions[first]
        if len(self._data) - start <= max_bytes:
            return start, len(self._data)
        beyond = bisect_right(self._positions, start + max_bytes) - 1
        if beyond <= first:
            if not at_least_one:
                return start, start
            beyond = first + 1
        return start, self._positions[beyond] if beyond < len(self._positions) else len(self._data)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """The batches of that span."""
        start, stop = self.span(offset, max_bytes, at_least_one=at_least_one)
        with memoryview(self._data) as view:
            return view[start:stop].tobytes()

    def first_batch_from_ms(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch that holds a record of this time or later."""
        index = bisect_left(self._newest_ms, timestamp_ms)
        return self._offsets[index] if index < len(self._offsets) else None
