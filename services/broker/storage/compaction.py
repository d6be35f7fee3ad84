"""Log compaction: keep only the newest record of each key, at its original offset. No I/O.

As in Kafka, a tombstone (a record without a value) is removed when it is older than `delete.retention.ms`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from services.broker.protocol import record_batch as batches
from services.broker.protocol.record_batch import BatchHeader
from services.runtime.compression import without_compression

_LARGEST_SPAN: Final = 2**31
_UNBOUNDED_BYTES: Final = 2**31 - 1


class UnreadableBatch(Exception):
    pass


class Survivor(NamedTuple):
    data: bytes
    base: int
    span: int
    max_timestamp_ms: int


def newest_offsets(data: Iterable[bytes]) -> dict[bytes, int]:
    """Return the offset of each key's newest record in these batches.

    Raises:
        UnreadableBatch: A batch cannot be decoded.
    """
    found: dict[bytes, int] = {}
    for batch in data:
        for record in _records(batch):
            if record.key is not None:
                found[record.key] = record.offset
    return found


def survivors(data: Iterable[bytes], newest: dict[bytes, int], drop_before_ms: int) -> Iterator[Survivor]:
    """Yield the batches that remain after compaction.

    A tombstone is removed if the largest timestamp of its batch is earlier than `drop_before_ms`.

    Raises:
        UnreadableBatch: A batch cannot be decoded.
    """
    # As in Kafka, the compacted batches have no gap between their offsets. Adjacent batches without remaining records
    # are replaced by one empty batch. A tombstone is removed by the largest timestamp of its batch.
    gap: Survivor | None = None
    for batch in data:
        kept = _compacted(batch, newest, drop_before_ms)
        if kept is not None and gap is not None:
            yield gap
            gap = None
        if kept is not None:
            yield kept
            continue
        header = batches.parse(batch)
        if gap is not None and gap.span + header.span < _LARGEST_SPAN:
            gap = _empty(gap.base, gap.span + header.span, max(gap.max_timestamp_ms, header.max_timestamp_ms))
            continue
        if gap is not None:
            yield gap
        gap = _empty(header.base_offset, header.span, header.max_timestamp_ms)
    if gap is not None:
        yield gap


def has_record_without_key(batch: bytes) -> bool:
    """Return whether any record of this batch has no key.

    Raises:
        UnreadableBatch: The batch cannot be decoded.
    """
    return any(record.key is None for record in _records(batch))


def _records(batch: bytes) -> list[Any]:
    try:
        return list(DefaultRecordBatch(without_compression(batch)))
    except Exception as error:  # noqa: BLE001 - invalid data raises anything
        raise UnreadableBatch(str(error)) from None


def _compacted(batch: bytes, newest: dict[bytes, int], drop_before_ms: int) -> Survivor | None:
    header = batches.parse(batch)
    records = _records(batch)
    old = header.max_timestamp_ms < drop_before_ms
    kept = [
        record
        for record in records
        if record.key is None or (newest[record.key] == record.offset and not (old and record.value is None))
    ]
    if not kept:
        return None
    if len(kept) == len(records):
        return Survivor(batch, header.base_offset, header.span, header.max_timestamp_ms)
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=header.codec, is_transactional=0, producer_id=header.producer_id,
        producer_epoch=header.producer_epoch, base_sequence=header.base_sequence, batch_size=_UNBOUNDED_BYTES,
    )  # fmt: skip
    for record in kept:
        builder.append(
            record.offset - header.base_offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    return _survivor(bytearray(builder.build()), header)


def _survivor(data: bytearray, original: BatchHeader) -> Survivor:
    batches.take_place_of(data, original)
    return Survivor(bytes(data), original.base_offset, original.span, original.max_timestamp_ms)


def _empty(base: int, span: int, max_timestamp_ms: int) -> Survivor:
    return Survivor(batches.empty(base, span, max_timestamp_ms), base, span, max_timestamp_ms)
