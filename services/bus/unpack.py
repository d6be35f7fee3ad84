"""From record batches as the broker stores them to single records."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.memory_records import MemoryRecords


class Item(NamedTuple):
    """One step through a partition: after it, ``next_offset`` is where reading goes on.

    ``record`` is aiokafka's (offset, timestamp, key, value, headers), or None when there is none to read; ``broken``
    says why a whole batch, which began at ``first``, cannot be read.
    """

    next_offset: int
    record: Any = None
    broken: str | None = None
    first: int = 0


def unpack(batches: bytes, start: int) -> Iterator[Item]:
    """The records from offset ``start`` on, in order; control batches and compacted gaps only move the offset."""
    memory = MemoryRecords(batches)
    while memory.has_next():
        batch = memory.next_batch()
        end = batch.next_offset
        if end <= start:
            continue  # a broker answers with whole batches: the first one may lie before what was asked for
        if not batch.is_control_batch:
            try:
                if not batch.validate_crc():
                    raise CorruptRecordException("checksum does not match")  # noqa: TRY301 - one way out for both
                for record in batch:
                    if record.offset >= start:
                        yield Item(record.offset + 1, record)
            except (CorruptRecordException, UnsupportedCodecError, RuntimeError, ValueError) as error:
                first = max(start, batch.base_offset)
                yield Item(end, None, f"the batch up to offset {end - 1} cannot be unpacked: {error}", first)
        yield Item(end)
