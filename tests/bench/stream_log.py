"""Read the stream log of a running ``railbus up``."""

import asyncio

from schemas.topics import STREAMS
from services.bus import BusSettings, Received, TailReader

LIMIT_S = 30


async def stream_log(kafka: str) -> list[Received]:
    """Return every event that is on the stream log now.

    The events are ordered by partition, and within a partition by offset. ``kafka`` is the broker's address.
    """
    settings = BusSettings(bootstrap=kafka)
    read: dict[int, list[Received]] = {}
    reached: dict[int, int] = {}
    news = asyncio.Event()

    def look(records):
        news.set()
        for record in records:
            reached[record.partition] = record.offset + 1
            read.setdefault(record.partition, []).append(record)

    reader = TailReader(settings, handler=look)
    reading = asyncio.create_task(reader.run())
    ends = {}
    for partition in range(settings.partitions):
        ends[partition] = await reader.end_offset(STREAMS, partition)
        reached[partition] = await reader.follow(STREAMS, partition, "beginning")
    async with asyncio.timeout(LIMIT_S):
        while any(reached[partition] < end for partition, end in ends.items()):
            news.clear()
            await news.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return [record for partition in sorted(read) for record in read[partition]]
