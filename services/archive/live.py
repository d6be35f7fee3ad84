"""Read records from a running broker for an audit."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from schemas.topics import TOPICS, Topic
from services.bus import AtTime, BusSettings, RawTailReader, StoredRecord, cluster_topics
from services.runtime.errors import UserError

MAX_RECORDS: Final = 2_000_000
"""Maximum number of records that are read at once, because they are held in memory. An archive has no such limit."""

CONNECT_S: Final = 15.0


async def live_records(settings: BusSettings, from_ms: int, topics: Collection[Topic] = TOPICS) -> list[StoredRecord]:
    """Return the records since ``from_ms``, sorted by topic, partition and offset.

    Raises:
        UserError: There are more than ``MAX_RECORDS`` records, a partition has no leader, or the broker cannot be
            reached.
    """
    found: list[StoredRecord] = []

    def take(records: Sequence[StoredRecord]) -> None:
        found.extend(records)
        if len(found) > MAX_RECORDS:
            raise UserError(
                f"more than {MAX_RECORDS:,} records are on the log since then: give a later --from, or read an archive"
                " with --archive"
            )

    reader = RawTailReader(settings, handler=take)
    ends: dict[tuple[Topic, int], int] = {}
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        try:
            async with asyncio.timeout(CONNECT_S):
                there = await cluster_topics(settings)
                partitions = [(topic, number) for topic in topics for number in range(there.counts.get(topic.name, 0))]
                there.check_leaders(partitions)
                for partition in partitions:
                    end = await reader.end_offset(*partition)
                    if await reader.follow(*partition, AtTime(from_ms)) < end:
                        ends[partition] = end
        except TimeoutError:
            raise UserError(
                f"the broker at {settings.bootstrap} does not answer: start it, or name another with --kafka"
            ) from None
        await reader.read_through(ends)
        reading.cancel()
    return sorted(found, key=lambda record: record[:3])
