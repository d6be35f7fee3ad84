"""The sparse index of a segment file: where batches begin, by offset and by time. No I/O.

An entry for every 16 KiB of batches, as Kafka has one for every 4 KiB: a read begins at the entry before the offset and
steps over whole batches by their headers. The index file is a cache: it could be rebuilt by reading all batches. It
holds the size and the modification time of its segment file; if one of them differs, or the checksum is wrong, the
batches are read again.
"""

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

INTERVAL_BYTES: Final = 16 * 1024
"""A batch gets an entry if it begins so many bytes after the last one that has one, or later."""

_MAGIC: Final = 0x5242_4958_0000_0001  # also says in which byte order the rest is
_NUMBERS_BEFORE: Final = 2  # magic, checksum of the rest
_PLACE: Final = Struct(">qi11xi8xq")  # base offset, length, last offset delta, largest timestamp (after the first)
_BEFORE_LENGTH: Final = 12  # bytes of a batch that its length does not count
_SMALLEST_BATCH_BYTES: Final = 61


class BatchPlace(NamedTuple):
    """A batch in a segment file: the bytes from `begin` up to `stop`, relative to where the search began."""

    begin: int
    stop: int
    base: int
    end: int
    max_timestamp_ms: int


class FileMark(NamedTuple):
    """The marks by which an unchanged segment file is recognised."""

    size: int
    mtime_ns: int


class StoredIndex(NamedTuple):
    """An index as its file has it."""

    end: int
    newest_ms: int
    mark: FileMark
    sparse: "SegmentIndex"


class DamagedBatch(OSError):
    """The bytes at this place are no batch, or not the next one."""


class SegmentIndex:
    """The index of one segment."""

    __slots__ = ("_newest_ms", "_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("q")  # base offset of a batch
        self._positions = array("q")  # its position in the file
        self._newest_ms = array("q")  # largest timestamp up to and including it: rising, so that it can be searched

    @property
    def memory_bytes(self) -> int:
        return 24 * len(self._offsets)

    @property
    def first_ms(self) -> int | None:
        """Return the largest timestamp of the first batch; None while there is none."""
        return self._newest_ms[0] if self._newest_ms else None

    def note(self, base: int, position: int, newest_ms: int) -> None:
        """Note a batch, in order; `newest_ms` is the largest timestamp up to and including it."""
        if not self._positions or position - self._positions[-1] >= INTERVAL_BYTES:
            self._offsets.append(base)
            self._positions.append(position)
            self._newest_ms.append(newest_ms)

    def stretch(self, offset: int, size: int) -> tuple[int, int]:
        """Return begin and stop of the stretch in which the batch of this offset begins and ends."""
        entry = bisect_right(self._offsets, offset) - 1
        return self._positions[entry], self._stop(entry, size)

    def position_up_to(self, position: int) -> int:
        """Return the last noted position that is not beyond this one."""
        return self._positions[bisect_right(self._positions, position) - 1]

    def stretch_of_time(self, timestamp_ms: int, size: int) -> tuple[int, int]:
        """Return the stretch that has the first batch of this time or later, if there is one."""
        found = bisect_left(self._newest_ms, timestamp_ms)
        if found == len(self._newest_ms):
            return self._positions[found - 1], size
        # That entry itself, or a batch between the entry before it and that one.
        return self._positions[max(0, found - 1)], self._stop(found, size)

    def _stop(self, entry: int, size: int) -> int:
        return self._positions[entry + 1] if entry + 1 < len(self._positions) else size

    def encode(self, end: int, newest_ms: int, mark: FileMark) -> bytes:
        """Return the content of the index file."""
        rest = array("q", [end, newest_ms, *mark])
        for column in (self._offsets, self._positions, self._newest_ms):
            rest += column
        data = rest.tobytes()
        return array("q", [_MAGIC, zlib.crc32(data)]).tobytes() + data

    @classmethod
    def decode(cls, data: bytes) -> StoredIndex | None:
        """Return the index that this file holds; None where it is damaged or another machine's."""
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
    """Yield the place of each whole batch from `begin` on; raises `DamagedBatch`."""
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
