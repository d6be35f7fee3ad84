"""Helpers of the bus tests: events, readers that run beside the test, and a handler that keeps the records."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer

from schemas.ids import uuid7
from schemas.stream import Chunk, Closed
from schemas.topics import Topic
from schemas.wire import encode, key_of
from services.bus import Producer, Received, TopicPartitions, UnreadableRecord, partition_for
from services.runtime.clock import now_ms

LIMIT_S = 60.0
"""If a test waits longer than this many seconds, it fails. This does not measure speed."""


def request_in(partition: int, count: int = 4) -> str:
    """Return a new request id that hashes into this partition. ``count`` is the number of partitions."""
    while partition_for(request_id := uuid7(now_ms(), random.getrandbits(74)), count) != partition:
        pass
    return request_id


def chunk(request_id: str, seq: int, text: str = "x") -> Chunk:
    return Chunk(
        request_id=request_id, tenant="t", at=now_ms() * 1000, source="test", attempt=1, run="r", seq=seq, start=seq,
        text=text,
    )  # fmt: skip


def closed(request_id: str, reason: str = "") -> Closed:
    return Closed(
        request_id=request_id, tenant="t", at=now_ms() * 1000, source="test", outcome="completed", reason=reason
    )


NOTHING: TopicPartitions = frozenset()


def all_partitions(topic: Topic) -> TopicPartitions:
    return frozenset((topic.name, partition) for partition in range(4))


async def fill_all(producer: Producer, topic: Topic, each: int) -> list[tuple[int, int]]:
    """Write chunks to all four partitions. ``each`` is the number of chunks per partition.

    Return the partition and offset of every chunk, sorted.
    """
    futures = [await producer.post(topic, chunk(request_in(p), 0)) for p in range(4) for _ in range(each)]
    return sorted([await future for future in futures])


class RecordCollector:
    """A record handler that keeps every record that it receives."""

    def __init__(self) -> None:
        self.records: list[Received | UnreadableRecord] = []
        self.calls: list[int] = []
        self._news = asyncio.Event()

    def __call__(self, records: Sequence[Received | UnreadableRecord]) -> None:
        self.records += records
        self.calls.append(len(records))
        self._news.set()

    @property
    def seqs(self) -> list[int]:
        return [r.event.seq for r in self.records if isinstance(r, Received) and isinstance(r.event, Chunk)]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return [(r.partition, r.offset) for r in self.records]

    async def until(self, there: Callable[[], bool]) -> None:
        """Wait until the condition ``there`` is true. It is checked whenever records arrive."""
        async with asyncio.timeout(LIMIT_S):
            while not there():
                self._news.clear()
                await self._news.wait()

    async def until_count(self, count: int) -> None:
        await self.until(lambda: len(self.records) >= count)


class Runs(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def running_readers(*readers: Runs) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run readers within the ``with`` block, and yield their tasks. If a reader failed, raise its error at the end."""
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


@asynccontextmanager
async def foreign_producer(bootstrap: str, **options: Any) -> AsyncIterator[Any]:
    """Yield a plain aiokafka producer, with which a test can write anything to a topic."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def put_raw(producer: Any, topic: str, event: Chunk | Closed, partition: int) -> None:
    """Write an event of Railbus with a plain aiokafka producer."""
    value, headers = encode(event)
    await producer.send_and_wait(topic, value, key=key_of(event), headers=headers, partition=partition)
