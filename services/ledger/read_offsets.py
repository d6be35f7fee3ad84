"""Store, in the ledger's Faust table, the offset of the next record to read from each partition."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.topics import Topic
from services.books import TableChange
from services.bus import BusSettings, RawTailReader, StoredRecord

LOOK_S: Final = 30.0
"""Maximum time, in seconds, in which ``first_offset`` searches for a record."""


class RecordsLost(RuntimeError):
    """Faust skipped records, and a seek did not bring them back."""


class ReadOffsets:
    """For each partition of each topic, the offset after the last record that was processed."""

    def __init__(self, table: Mapping[bytes, bytes], sources: Mapping[str, str]) -> None:
        self._table = table
        self._sources = sources  # the short name of each topic in the keys of the table

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset to read next; 0 if no record of the partition was processed."""
        return int(self._table.get(_key(self._sources[topic], partition), b"0"))

    def missing(self, message: Any) -> range:
        """Return the offsets between the last processed record and this record."""
        return range(self.next_offset(message.topic, message.partition), message.offset)

    def change(self, message: Any) -> TableChange:
        key = _key(self._sources[message.topic], message.partition)
        return TableChange(key, b"%d" % max(self.next_offset(message.topic, message.partition), message.offset + 1))


def _key(source: str, partition: int) -> bytes:
    return b"%d/o/%s" % (partition, source.encode())


async def first_offset(bus: BusSettings, topic: Topic, partition: int, since: int) -> int | None:
    """Return the offset of the first record at offset ``since`` or later; None if none is found within ``LOOK_S``."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def note(records: Sequence[StoredRecord]) -> None:
        if not found.done():
            found.set_result(records[0].offset)

    reader = RawTailReader(bus, handler=note)
    reading = asyncio.create_task(reader.run(), name="ledger-look")
    try:
        async with asyncio.timeout(LOOK_S):
            await reader.follow(topic, partition, since)
            return await found
    except TimeoutError:
        return None
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
