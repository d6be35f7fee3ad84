"""A fast way to write many chunks to a broker and to read all of them back, over one blocking connection."""

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from schemas.stream import Chunk
from schemas.wire import encode, key_of
from services.broker.protocol.record_batch import CRC_COVERS_FROM, HEADER, BatchHeader
from services.broker.protocol.wire import Reader, Writer

PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 19, 20
IN_FLIGHT: Final = 8
"""How many requests are sent before the response to the first one is read."""

FETCH_BYTES: Final = 4 << 20

EARLIEST, LATEST = -2, -1
NEW_MS: Final = 1_790_000_000_000


class Connection:
    """A blocking connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, key: int, version: int, body: bytes) -> None:
        head = Writer().i16(key).i16(version).i32(1).string("chunk-log").done()
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def send_produce(self, topic: str, batch: bytes) -> None:
        """Send a produce request with a batch for partition 0, without waiting for the response."""
        self.send(PRODUCE, 7, _produce(topic, 1, batch))

    def answer(self) -> Reader:
        (size,) = struct.unpack(">i", self._file.read(4))
        return Reader(self._file.read(size), 4)

    def ask(self, key: int, version: int, body: bytes) -> Reader:
        self.send(key, version, body)
        return self.answer()


def chunk_batch(records: int, text: str = " token") -> bytes:
    """Return the bytes of one record batch with ``records`` chunks, as a producer sends them."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
    for seq in range(records):
        event = Chunk(
            request_id="0197c6f0-5b1e-7c3a-9d2e-3f4a5b6c7d8e", tenant="bench", at=NEW_MS * 1000, source="generator/1",
            attempt=1, run="0123456789abcdef", seq=seq, start=seq * len(text), text=text,
        )  # fmt: skip
        value, headers = encode(event)
        builder.append(seq, NEW_MS, key_of(event), value, headers)
    return bytes(builder.build())


def create_topic(connection: Connection, topic: str, partitions: int, config: dict[str, str]) -> None:
    out = Writer().i32(1).string(topic).i32(partitions).i16(1).i32(0)
    out.array(config.items(), lambda item: out.string(item[0]).string(item[1]))
    answer = connection.ask(CREATE_TOPICS, 2, out.i32(10_000).i8(0).done())
    answer.i32(), answer.i32(), answer.string()
    code, message = answer.i16(), answer.nullable_string()
    assert code == 0, message


def fill(address: str, topic: str, partitions: int, chunks: int, *, in_batch: int = 16, text: str = " token") -> int:
    """Append chunks, the same number to each partition, and return their total size in bytes.

    ``chunks`` is the number for all partitions together. Fail if the broker reports an error.
    """
    connection = Connection(address)
    batch, in_request = chunk_batch(in_batch, text), in_batch * partitions
    body, requests = _produce(topic, partitions, batch), chunks // in_request
    assert requests * in_request == chunks, "chunks must fill whole requests"
    waiting = 0
    for number in range(requests + IN_FLIGHT):
        if number < requests:
            connection.send(PRODUCE, 7, body)
            waiting += 1
        if number >= IN_FLIGHT - 1 and waiting:
            assert set(_codes(connection.answer())) == {0}
            waiting -= 1
    connection.close()
    return requests * partitions * len(batch)


def produce(connection: Connection, topic: str, batch: bytes) -> int:
    """Append a batch to partition 0, and return the error code of the response."""
    (code,) = _codes(connection.ask(PRODUCE, 7, _produce(topic, 1, batch)))
    return code


def _produce(topic: str, partitions: int, batch: bytes) -> bytes:
    out = Writer().string(None).i16(-1).i32(30_000).i32(1).string(topic).i32(partitions)
    for partition in range(partitions):
        out.i32(partition).blob(batch)
    return out.done()


def _codes(answer: Reader) -> list[int]:
    """Return the error code of each partition in the response to a produce request."""
    answer.i32(), answer.string()
    codes = []
    for _ in range(answer.i32()):
        answer.i32()
        codes.append(answer.i16())
        answer.i64(), answer.i64(), answer.i64()
    return codes


def delete_topic(connection: Connection, topic: str) -> None:
    answer = connection.ask(DELETE_TOPICS, 1, Writer().i32(1).string(topic).i32(10_000).done())
    answer.i32(), answer.i32(), answer.string()
    assert answer.i16() == 0


def offset(connection: Connection, topic: str, partition: int, time_ms: int) -> int:
    """Return the partition's first offset for the time ``EARLIEST``, and its end offset for the time ``LATEST``.

    Otherwise, return the offset of the first record whose timestamp is ``time_ms`` or later.
    """
    out = Writer().i32(-1).i32(1).string(topic).i32(1).i32(partition).i64(time_ms)
    answer = connection.ask(LIST_OFFSETS, 1, out.done())
    answer.i32(), answer.string(), answer.i32(), answer.i32()
    assert answer.i16() == 0
    answer.i64()
    return answer.i64()


def count_chunks(address: str, topic: str, partitions: Sequence[int]) -> int:
    """Read all records of these partitions, check every offset and checksum, and return the number of records."""
    connection = Connection(address)
    total = 0
    for partition in partitions:
        at, end = offset(connection, topic, partition, EARLIEST), offset(connection, topic, partition, LATEST)
        total += end - at
        while at < end:
            send_fetch(connection, topic, partition, at)
            at = _check(fetched(connection), at)
    connection.close()
    return total


def send_fetch(connection: Connection, topic: str, partition: int, at: int, *, wait_ms: int = 0) -> None:
    out = Writer().i32(-1).i32(wait_ms).i32(1).i32(FETCH_BYTES).i8(0).i32(1).string(topic)
    connection.send(FETCH, 4, out.i32(1).i32(partition).i64(at).i32(FETCH_BYTES).done())


def fetched(connection: Connection) -> bytes:
    """Read the response to a fetch request of one partition, and return the record batches in it."""
    answer = connection.answer()
    answer.i32(), answer.i32(), answer.string(), answer.i32(), answer.i32()
    code = answer.i16()
    assert code == 0, f"fetch failed with {code}"
    answer.i64(), answer.i64(), answer.i32()
    return answer.blob()


def _check(data: bytes, at: int) -> int:
    """Check the record batches, which must begin at the offset ``at``, and return the offset after the last record."""
    assert data, f"nothing at offset {at}"
    for header, batch in _batches(data):
        assert header.base_offset == at, f"offset {header.base_offset} where {at} was due"
        assert calc_crc32c(batch[CRC_COVERS_FROM:]) == header.crc
        at += header.record_count
    return at


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    position = 0
    while position < len(data):
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        yield header, data[position : position + header.size]
        position += header.size
