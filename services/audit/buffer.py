"""Buffer the records of one partition until they are written to a file. No I/O."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from services.archive.chain import size
from services.bus import StoredRecord

UNIT_BYTES: Final = 1_024
"""Size of a unit. The content of buffers is counted in units, and each record counts as at least one."""

OVERHEAD_BYTES: Final = 500
"""Estimated bytes of memory for a record, in addition to its key and value."""

DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class PartitionBuffer:
    """The buffered records of one partition, sorted by offset.

    Attributes:
        next_offset: The offset after the last added record.
        start: The offset after the last removed record.
        units: Size of the buffered records, in units of ``UNIT_BYTES``.
        since_us: When the oldest buffered record was added, in microseconds; None if there is no record.
    """

    next_offset: int
    start: int = field(init=False)
    units: int = 0
    since_us: int | None = None
    _records: list[StoredRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = self.next_offset

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: StoredRecord, now_us: int) -> None:
        if record.offset < self.next_offset:
            place = bisect_left(self._records, record.offset, key=lambda each: each.offset)
            if record.offset < self.start or record in self._records[place : place + 1]:
                return  # it is archived already, or it was read again after a reconnection
            if record.is_broken_batch:
                return  # it must not replace what was read, since an app can write a batch that cannot be unpacked
            # The broker lost the end of its log, and this record has the offset of a lost one.
            self.units -= sum(map(units_of, self._records[place:]))
            del self._records[place:]
        self.next_offset = record.offset + 1
        self.units += units_of(record)
        self._records.append(record)
        if self.since_us is None:
            self.since_us = now_us

    def take(self) -> tuple[int, list[StoredRecord]]:
        """Remove records from the beginning of the buffer. Stop before the first record of another day (UTC).

        Return the value that ``start`` had before the removal, and the removed records.
        """
        records = self._records
        day = records[0].timestamp_ms // DAY_MS if records else 0
        end = next((i for i, record in enumerate(records) if record.timestamp_ms // DAY_MS != day), len(records))
        taken, self._records = records[:end], records[end:]
        self.units -= sum(map(units_of, taken))
        if not self._records:
            self.since_us = None
        start = self.start
        if taken:
            self.start = taken[-1].offset + 1
        return start, taken


def units_of(record: StoredRecord) -> int:
    return (size(record) + OVERHEAD_BYTES + UNIT_BYTES - 1) // UNIT_BYTES
