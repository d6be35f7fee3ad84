"""The hash chain over the records of one partition: each digest covers the digest before it. No I/O."""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import orjson

from services.bus import StoredRecord

DIGEST_BYTES: Final = 32
_FIXED: Final = struct.Struct(">qqiii")
_LENGTHS: Final = struct.Struct(">ii")
_NONE: Final = -1

Tampering = Literal["edited", "dropped", "inserted", "reordered"]


class QueryFields(NamedTuple):
    """The fields by which queries can filter records. A field is None if it cannot be read from the record.

    Attributes:
        at_us: Time at which the producer created the event, in microseconds since the epoch.
    """

    kind: str | None
    request_id: str | None
    tenant: str | None
    at_us: int | None


class ArchivedRecord(NamedTuple):
    """A record as the archive stores it. Its value is ciphertext if ``sealed`` is true."""

    record: StoredRecord
    fields: QueryFields
    sealed: bool = False


class ChainBreak(NamedTuple):
    """A place where the hash chain is broken.

    Attributes:
        change: The probable cause, guessed from the neighbouring records.
        offset: Offset of the record whose digest is wrong.
        after: Offset of the previous record; None at the start of the partition.
    """

    change: Tampering
    offset: int
    after: int | None


def genesis(topic: str, partition: int) -> bytes:
    return hashlib.sha256(f"railbus archive 1\n{topic}\n{partition}\n".encode()).digest()


def digest(before: bytes, archived: ArchivedRecord) -> bytes:
    record, fields, sealed = archived
    key, value, headers = record.key, record.value, record.headers
    parts = [
        before,
        _FIXED.pack(record.offset, record.timestamp_ms, _size(key), _size(value), len(headers) << 1 | sealed),
        key or b"",
        value or b"",
        orjson.dumps(fields[:]),
    ]
    for name, content in headers:
        encoded = name.encode()
        parts += (_LENGTHS.pack(len(encoded), _size(content)), encoded, content or b"")
    return hashlib.sha256(b"".join(parts)).digest()


def chained(before: bytes, records: Iterable[ArchivedRecord]) -> Iterator[bytes]:
    for record in records:
        before = digest(before, record)
        yield before


def size(record: StoredRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")


def breaks(head: bytes, rows: Iterable[tuple[ArchivedRecord, bytes]], last: int | None = None) -> Iterator[ChainBreak]:
    """Yield every place where the chain is broken.

    Args:
        head: Digest of the last record before ``rows``.
        rows: Each record with its recorded digest.
        last: Offset of the last record before ``rows``; None at the start of the partition.
    """
    held = list(rows)
    for index, (archived, recorded) in enumerate(held):
        offset = archived.record.offset
        if digest(head, archived) != recorded:
            yield ChainBreak(_change(held, index, head, last), offset, last)
        head, last = recorded, offset  # the recorded digest, so that one change is one break


def _change(rows: list[tuple[ArchivedRecord, bytes]], index: int, before: bytes, after: int | None) -> Tampering:
    offset = rows[index][0].record.offset
    following = rows[index + 1][0].record.offset if index + 1 < len(rows) else None
    if after is not None and offset == after:
        return "inserted"
    if (after is not None and offset < after) or (following is not None and following < offset):
        return "reordered"
    if index + 1 < len(rows) and digest(before, rows[index + 1][0]) == rows[index + 1][1]:
        return "inserted"  # without this record the chain is unbroken
    expected = 0 if after is None else after + 1
    return "dropped" if offset > expected else "edited"


def _size(content: bytes | None) -> int:
    return _NONE if content is None else len(content)
