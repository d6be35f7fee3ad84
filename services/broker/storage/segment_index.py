"""The sparse index of a segment file: file positions of batches by offset and by time. No I/O."""

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

INTERVAL_BYTES: Final = 16 * 1024
"""Minimum distance in bytes between the file positions of two batches with an entry."""

_MAGIC: Final = 0x5242_4958_0000_0001  # also shows the byte order of the other numbers
_NUMBERS_BEFORE: Final = 2  # magic, and the checksum of all later numbers
_PLACE: Final = Struct(">qi11xi8xq")  # base offset, length, last offset delta, largest timestamp
_BEFORE_LENGTH: Final = 12  # bytes of a batch that its length field does not count
_SMALLEST_BATCH_BYTES: Final = 61


class BatchPlace(NamedTuple):
    begin: int
    stop: int
    base: int
    end: int
    max_timestamp_ms: int


class FileMark(NamedTuple):
    size: int
    mtime_ns: int


class StoredIndex(NamedTuple):
    end: int
    newest_ms: int
    mark: FileMark
    sparse: "SegmentIndex"


class DamagedBatch(OSError):
    """The bytes at a file position are not the expected batch."""


class SegmentIndex:
    __slots__ = ("_newest_ms", "_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("q")  # base offset of the batch of each entry
        self._positions = array("q")  # file position of this batch
        self._newest_ms = array("q")  # largest timestamp up to this batch; never decreases, for binary search

    @property
    def memory_bytes(self) -> int:
        return 24 * len(self._offsets)

    @property
    def first_ms(self) -> int | None:
        return self._newest_ms[0] if self._newest_ms else None

    def note(self, base: int, position: int, newest_ms: int) -> None:
        """Add a batch to the index if it is the first, or starts at least `INTERVAL_BYTES` after the last one added."""
        if not self._positions or position - self._positions[-1] >= INTERVAL_BYTES:
            self._offsets.append(base)
            self._positions.append(position)
            self._newest_ms.append(newest_ms)

    def stretch(self, offset: int, size: int) -> tuple[int, int]:
        """Return the file positions between which to search for the batch with this offset.

        `size` is the size of the file.
        """
        entry = bisect_right(self._offsets, offset) - 1
        return self._positions[entry], self._stop(entry, size)

    def position_up_to(self, position: int) -> int:
        return self._positions[bisect_right(self._positions, position) - 1]

    def stretch_of_time(self, timestamp_ms: int, size: int) -> tuple[int, int]:
        """Return the file positions between which to search for a batch by time.

        The batch is the first one with a timestamp of at least `timestamp_ms`. `size` is the size of the file.
        """
        found = bisect_left(self._newest_ms, timestamp_ms)
        if found == len(self._newest_ms):
            return self._positions[found - 1], size
        # The batch is the one of the entry `found`, or is between the previous entry and that entry.
        return self._positions[max(0, found - 1)], self._stop(found, size)

    def _stop(self, entry: int, size: int) -> int:
        return self._positions[entry + 1] if entry + 1 < len(self._positions) else size

    def encode(self, end: int, newest_ms: int, mark: FileMark) -> bytes:
        rest = array("q", [end, newest_ms, *mark])
        for column in (self._offsets, self._positions, self._newest_ms):
            rest += column
        data = rest.tobytes()
        return array("q", [_MAGIC, zlib.crc32(data)]).tobytes() + data

    @classmethod
    def decode(cls, data: bytes) -> StoredIndex | None:
        """Return the content of an index file; None if it cannot be used."""
        numbers = array("q")
        if len(data) % numbers.itemsize:
            return None
        numbers.frombytes(data)
        head = _NUMBERS_BEFORE + 4
        if len(numbers) < head or numbers[0] != _MAGIC or numbers[1] != zlib.crc32(data[_NUMBERS_BEFORE * 8 :]):
            return None
        end, newest_ms, size, mtime_ns = numbers[_NUMBERS_BEFORE:head]
        count = (len(numbers) - head) // 3
        index = cls()
        index._offsets = numbers[head : head + count]
        index._positions = numbers[head + count : head + 2 * count]
        index._newest_ms = numbers[head + 2 * count :]
        return StoredIndex(end, newest_ms, FileMark(size, mtime_ns), index)


def batches_in(data: bytes, begin: int = 0) -> Iterator[BatchPlace]:
    """Yield a `BatchPlace` for each batch in `data`. The first batch starts at the position `begin`.

    An incomplete batch at the end is left out.

    Raises:
        DamagedBatch: The bytes are not a sequence of batches.
    """
    expected: int | None = None
    while len(data) - begin >= _SMALLEST_BATCH_BYTES:
        base, length, last_delta, newest_ms = _PLACE.unpack_from(data, begin)
        stop = begin + _BEFORE_LENGTH + length
        follows = expected is None or base == expected
        if not follows or last_delta < 0 or length < _SMALLEST_BATCH_BYTES - _BEFORE_LENGTH:
            raise DamagedBatch("a stored batch is damaged")
        if stop > len(data):
            return
        expected = base + last_delta + 1
        yield BatchPlace(begin, stop, base, expected, newest_ms)
        begin = stop
