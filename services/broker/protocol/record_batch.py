"""Record batches of magic 2 (KIP-98): parse and check headers, and read and write timestamps."""

import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from google_crc32c import value as crc32c

from services.broker.protocol.error_codes import ErrorCode
from services.runtime.compression import without_compression

HEADER = struct.Struct(">qiibIhiqqqhii")
BROKER_FIELDS = struct.Struct(">qii")  # base offset, length, leader epoch: the fields that the broker sets
CRC_COVERS_FROM = 21
LENGTH_COUNTS_FROM = 12
MAGIC_AT = 16
_MAGIC = 2
LEADER_EPOCH = 0
_CRC = struct.Struct(">I")
_CRC_AT = 17
_UNCHECKED = struct.Struct(">qiibI")  # the fields that the checksum does not cover, and the checksum
_CHECKED = struct.Struct(">hiqq")  # attributes, last offset delta, base and largest timestamp
_PRODUCER_AT = CRC_COVERS_FROM + _CHECKED.size
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35

_SMALLEST_LENGTH = HEADER.size - LENGTH_COUNTS_FROM

_COMPRESSION = 0x07
_ZSTD = 4
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class BatchHeader(NamedTuple):
    # In wire order:
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return LENGTH_COUNTS_FROM + self.length

    @property
    def span(self) -> int:
        """Return the number of offsets that the batch covers. After compaction, the batch may have fewer records."""
        return self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Return Kafka's number of the compression codec; 0 means uncompressed."""
        return self.attributes & _COMPRESSION

    @property
    def has_append_time(self) -> bool:
        """Return whether the timestamp of every record is the broker's append time."""
        return bool(self.attributes & _APPEND_TIME)


class BatchRejected(Exception):
    """A batch is rejected. `code` is the error code for the client."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def parse(batch: memoryview | bytes) -> BatchHeader:
    """Return the header of the batch at the start of these bytes.

    Raises:
        BatchRejected: The bytes do not start with a complete batch of magic 2.
    """
    if len(batch) > MAGIC_AT and batch[MAGIC_AT] != _MAGIC:
        raise BatchRejected(ErrorCode.INVALID_RECORD, "only record batches of magic 2 are accepted")
    if len(batch) < HEADER.size:
        raise BatchRejected(ErrorCode.INVALID_RECORD, "the bytes are shorter than a batch header")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if not _SMALLEST_LENGTH <= header.length <= len(batch) - LENGTH_COUNTS_FROM:
        raise BatchRejected(ErrorCode.INVALID_RECORD, "the batch's length does not match its bytes")
    return header


def intact(batch: memoryview | bytes, header: BatchHeader) -> bool:
    """Return whether the checksum of the batch is correct."""
    return bool(crc32c(bytes(batch[CRC_COVERS_FROM : header.size])) == header.crc)


def check_produced(batch: memoryview | bytes, header: BatchHeader, produce_version: int) -> None:
    """Apply Kafka's checks to a batch that a client sent.

    Raises:
        BatchRejected: A check failed.
    """
    if header.size != len(batch):
        raise BatchRejected(ErrorCode.INVALID_RECORD, "a partition's records must be exactly one batch")
    if not intact(batch, header):  # first, because no field of a damaged batch can be trusted
        raise BatchRejected(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    if header.attributes & _CONTROL:
        raise BatchRejected(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.attributes & _TRANSACTIONAL:
        raise BatchRejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise BatchRejected(ErrorCode.INVALID_RECORD, "the batch's record count and offsets do not agree")
    codec = header.attributes & _COMPRESSION
    if codec > _ZSTD or (codec == _ZSTD and produce_version < 7):
        raise BatchRejected(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "an unknown codec, or zstd before Produce version 7"
        )


def place(batch: bytes, header: BatchHeader, base_offset: int, append_ms: int | None) -> bytes:
    """Return a copy of a client's batch, to be stored at `base_offset`.

    `append_ms` becomes the timestamp of every record. None keeps the client's timestamps. The timestamp type and the
    checksum of the copy are set accordingly.
    """
    if append_ms is None and not header.has_append_time:
        return BROKER_FIELDS.pack(base_offset, header.length, LEADER_EPOCH) + batch[MAGIC_AT:]
    if append_ms is None:
        attributes, newest_ms = header.attributes & ~_APPEND_TIME, header.max_timestamp_ms
    else:
        attributes, newest_ms = header.attributes | _APPEND_TIME, append_ms
    checked = _CHECKED.pack(attributes, header.last_offset_delta, header.base_timestamp_ms, newest_ms)
    checked += batch[_PRODUCER_AT:]
    return _UNCHECKED.pack(base_offset, header.length, LEADER_EPOCH, _MAGIC, crc32c(checked)) + checked


def take_place_of(batch: bytearray, original: BatchHeader) -> None:
    length = len(batch) - LENGTH_COUNTS_FROM
    BROKER_FIELDS.pack_into(batch, 0, original.base_offset, length, original.leader_epoch)
    # The builder of `batch` may have left the records uncompressed.
    (built,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    attributes = (original.attributes & ~_COMPRESSION) | (built & _COMPRESSION)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _LAST_DELTA.pack_into(batch, _LAST_DELTA_AT, original.last_offset_delta)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, original.max_timestamp_ms)
    _CRC.pack_into(batch, _CRC_AT, crc32c(bytes(batch[CRC_COVERS_FROM:])))


def empty(base_offset: int, span: int, max_timestamp_ms: int) -> bytes:
    """Return a batch that covers `span` offsets but has no records."""
    length, attributes, none = HEADER.size - LENGTH_COUNTS_FROM, 0, -1
    batch = bytearray(
        HEADER.pack(
            base_offset, length, LEADER_EPOCH, _MAGIC, 0, attributes, span - 1, max_timestamp_ms, max_timestamp_ms,
            none, none, none, 0,
        )
    )  # fmt: skip
    _CRC.pack_into(batch, _CRC_AT, crc32c(bytes(batch[CRC_COVERS_FROM:])))
    return bytes(batch)


def timestamps(batch: bytes) -> list[tuple[int, int]] | None:
    """Return (offset, timestamp in ms) of each record; None if the batch cannot be decoded."""
    try:
        return [(record.offset, record.timestamp) for record in DefaultRecordBatch(without_compression(batch))]
    except Exception:  # noqa: BLE001 - invalid data raises anything
        return None
