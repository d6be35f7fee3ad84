"""Functions that send single requests of Kafka's protocol, and return fields that a client library would hide."""

import asyncio
from collections.abc import Sequence

from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
COORDINATOR_LOAD_IN_PROGRESS = 14
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47

LATEST = -1
EARLIEST = -2


def batch(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int = 1_700_000_000_000,
    compression: int = 0,
) -> bytes:
    """Return a record batch as bytes. ``compression`` is Kafka's codec number; 0 is uncompressed."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 24,
    )
    for offset, value in enumerate(values):
        assert builder.append(offset, timestamp=timestamp, key=None, value=value, headers=[]) is not None
    return bytes(builder.build())


async def produce(
    connection: AIOKafkaConnection, topic: str, records: bytes, *, partition: int = 0, acks: int = -1
) -> tuple[int, int]:
    """Produce a record batch, and return the error code and the acknowledged offset."""
    error, offset, _ = await produce_timed(connection, topic, records, partition=partition, acks=acks)
    return error, offset


async def produce_timed(
    connection: AIOKafkaConnection, topic: str, records: bytes, *, partition: int = 0, acks: int = -1
) -> tuple[int, int, int]:
    """Do the same as ``produce``, and also return the broker's append time from the response, in milliseconds."""
    request = ProduceRequest(None, acks, 5000, [(topic, [(partition, records)])])
    response = await connection.send(request)
    ((_, ((_, error, offset, time_ms, *_),)),) = response.topics
    return error, offset, time_ms


async def producer_id(connection: AIOKafkaConnection) -> tuple[int, int]:
    """Request a new producer id, and return the id and its epoch."""
    for _ in range(100):
        response = await connection.send(InitProducerIdRequest(None, 0))
        if response.error_code != COORDINATOR_LOAD_IN_PROGRESS:  # after this error, clients try again
            break
        await asyncio.sleep(0.05)
    assert response.error_code == NONE
    return response.producer_id, response.producer_epoch


async def fetch(
    connection: AIOKafkaConnection,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> tuple[int, int, bytes]:
    """Fetch from one partition, and return the error code, the high watermark and the record batches."""
    topics = [(topic, [(partition, offset, max_bytes)])]
    response = await connection.send(FetchRequest(max_wait_ms, min_bytes, max_bytes, 0, topics))
    (answered,) = response.topics[0][1]
    number, error, high_watermark, *_, records = answered  # in every version
    assert number == partition
    return error, high_watermark, records or b""


async def list_offset(
    connection: AIOKafkaConnection, topic: str, timestamp: int, *, partition: int = 0
) -> tuple[int, int]:
    """Return the error code and the offset for a timestamp, which may also be LATEST or EARLIEST."""
    response = await connection.send(OffsetRequest(-1, 0, [(topic, [(partition, timestamp)])]))
    ((_, ((_, error, *_, offset),)),) = response.topics
    return error, offset
