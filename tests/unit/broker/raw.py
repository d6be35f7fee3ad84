"""A Kafka client that sends exactly the bytes that a test gives it, well-formed or not."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.broker.protocol.wire import Reader, Writer
from services.broker.service import BrokerService

PRODUCE, FETCH, METADATA, JOIN, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 11, 18, 19
SOON_S = 5.0


class Raw:
    """One connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, key: int, version: int, body: bytes, correlation: int = 7) -> None:
        head = Writer().i16(key).i16(version).i32(correlation).string("raw").done()
        self.writer.write(struct.pack(">i", len(head) + len(body)) + head + body)

    async def answer(self) -> tuple[int, Reader]:
        """Read a response. Return its correlation id, and a ``Reader`` that starts after this id."""
        async with asyncio.timeout(SOON_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        return struct.unpack(">i", frame[:4])[0], Reader(frame, 4)

    async def ask(self, key: int, version: int, body: bytes) -> Reader:
        self.send(key, version, body)
        correlation, answer = await self.answer()
        assert correlation == 7
        return answer

    async def is_closed(self) -> bool:
        """Return whether the broker closes the connection without sending anything."""
        async with asyncio.timeout(SOON_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def connected(broker: BrokerService) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


def metadata() -> bytes:
    return Writer().i32(-1).done()


def produce(topic: str, batch: bytes, *, acks: int = -1, partition: int = 0) -> bytes:
    out = Writer().string(None).i16(acks).i32(1000).i32(1).string(topic)
    return out.i32(1).i32(partition).blob(batch).done()


def produced(answer: Reader) -> tuple[int, int]:
    """Return (error code, base offset) from a Produce response (version 7) for one partition."""
    answer.i32(), answer.string(), answer.i32(), answer.i32()
    return answer.i16(), answer.i64()


def fetch(*partitions: tuple[str, int, int], wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20) -> bytes:
    """Return the body of a Fetch request (version 4). Each of `partitions` is (topic, partition number, offset)."""
    out = Writer().i32(-1).i32(wait_ms).i32(min_bytes).i32(max_bytes).i8(0).i32(len(partitions))
    for topic, number, offset in partitions:
        out.string(topic).i32(1).i32(number).i64(offset).i32(max_bytes)
    return out.done()


def fetched(answer: Reader) -> list[tuple[str, int, int, bytes]]:
    """Return (topic, partition number, error code, records) for each partition of a Fetch response (version 4)."""
    answer.i32()
    found = []
    for _ in range(answer.i32()):
        topic = answer.string()
        for _ in range(answer.i32()):
            partition, error = answer.i32(), answer.i16()
            answer.i64(), answer.i64(), answer.i32()
            found.append((topic, partition, error, answer.blob()))
    return found


async def create(broker: BrokerService, topic: str, partitions: int = 1) -> None:
    body = Writer().i32(1).string(topic).i32(partitions).i16(1).i32(0).i32(0).i32(1000).i8(0).done()
    async with connected(broker) as raw:
        answer = await raw.ask(CREATE_TOPICS, 3, body)
        answer.i32(), answer.i32(), answer.string()
        assert answer.i16() == 0
