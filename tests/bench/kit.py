"""What benches share: the peers' model server, and a topic read to its end."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.topics import STREAMS
from services.bus import BusSettings, Received, TailReader
from tests.bench.added_ttft import wait_for

LIMIT_S = 30


@contextmanager
def upstream(kit: Path, port: int, journal: Path | None = None) -> Iterator[str]:
    """The load kit's model server while the block runs; its URL. It notes what happened in the journal."""
    command = [sys.executable, str(kit / "upstream.py"), "--port", str(port)]
    command += [] if journal is None else ["--log", str(journal)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/v1/models", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


async def stream_log(kafka: str) -> list[Received]:
    """Every event on the stream log, as it stands now; each partition in order."""
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
