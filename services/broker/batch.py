"""The record batch, magic 2: its header, its checks, and the timestamps inside it.

Layout (KIP-98), all big-endian: base offset i64, length i32 (of what follows it), leader epoch i32, magic i8, crc u32
(CRC-32C of all that follows the crc), attributes i16, last offset delta i32, base timestamp i64, largest timestamp i64,
producer id i64, producer epoch i16, base sequence i32, record count i32, records. Offset and leader epoch lie before
what the checksum covers, so the broker may write its own over the client's. What time the broker gives a batch lies
within: bit 3 of the attributes says that the largest timestamp is the broker's, and that of every record.
"""

import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

from services.broker.codes import Code

HEADER = struct.Struct(">qiibIhiqqqhii")
PLACE = struct.Struct(">qii")  # base offset, length, leader epoch: the part that is the broker's own
CRC_COVERS_FROM = 21
LENGTH_COUNTS_FROM = 12
MAGIC_AT = 16
LEADER_EPOCH = 0
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35

_COMPRESSION = 0x07
_ZSTD = 4
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class Header(NamedTuple):
    """A batch's header, field by field, in the wire's order."""

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
        """Bytes of the whole batch, header included."""
        return LENGTH_COUNTS_FROM + self.length

    @property
    def has_append_time(self) -> bool:
        """Whether its time, and that of every record in it, is the one it was appended at."""
        return bool(self.attributes & _APPEND_TIME)


class Refused(Exception):
    """A batch is not taken; `code` is what the client is told."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


def parse(batch: memoryview | bytes) -> Header:
    """The header of the batch that begins here; raises `Refused` when it is not one whole batch of magic 2."""
    if len(batch) > MAGIC_AT and batch[MAGIC_AT] != 2:
        raise Refused(Code.INVALID_RECORD, "only record batches of magic 2 are taken")
    if len(batch) < HEADER.size:
        raise Refused(Code.INVALID_RECORD, "the bytes are shorter than a batch header")
    header = Header._make(HEADER.unpack_from(batch))
    if header.length < HEADER.size - LENGTH_COUNTS_FROM or header.size > len(batch):
        raise Refused(Code.INVALID_RECORD, "the batch's length is not that of its bytes")
    return header


def intact(batch: memoryview | bytes, header: Header) -> bool:
    """Whether the checksum is that of the bytes."""
    return bool(calc_crc32c(batch[CRC_COVERS_FROM : header.size]) == header.crc)


def check_produced(batch: memoryview | bytes, header: Header, produce_version: int) -> None:
    """What a client may send, as Kafka has it; raises `Refused`."""
    if header.size != len(batch):
        raise Refused(Code.INVALID_RECORD, "a partition's records must be exactly one batch")
    if not intact(batch, header):  # first, because of what a damaged batch says nothing is true
        raise Refused(Code.CORRUPT_MESSAGE, "the batch's checksum does not match")
    if header.attributes & _CONTROL:
        raise Refused(Code.INVALID_RECORD, "clients may not write control records")
    if header.attributes & _TRANSACTIONAL:
        raise Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise Refused(Code.INVALID_RECORD, "the batch's record count and offsets do not agree")
    codec = header.attributes & _COMPRESSION
    if codec > _ZSTD or (codec == _ZSTD and produce_version < 7):
        raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, "an unknown codec, or zstd before Produce version 7")


def stamp(batch: bytearray, header: Header, append_ms: int | None) -> Header:
    """Write the time into the batch, and the checksum that belongs to it: that of the append, or None for the client's.

    The checksum is computed over the whole batch again (0.8 us for a kilobyte); nothing is copied.
    """
    if append_ms is None:
        _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, header.attributes & ~_APPEND_TIME)
    else:
        _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, header.attributes | _APPEND_TIME)
        _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, append_ms)
    _CRC.pack_into(batch, _CRC_AT, calc_crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return Header._make(HEADER.unpack_from(batch))


def timestamps(batch: bytes) -> list[tuple[int, int]] | None:
    """(offset, timestamp in ms) of each record, decompressing where needed; None for what cannot be opened here.

    gzip always can; lz4, snappy and zstd need the package `cramjam`.
    """
    try:
        return [(record.offset, record.timestamp) for record in DefaultRecordBatch(bytearray(batch))]
    except Exception:  # noqa: BLE001 - codecs raise anything, be it that they are not installed or a client's garbage
        return None
