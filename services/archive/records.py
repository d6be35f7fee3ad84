"""Convert records to Arrow tables and back."""

import base64
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from schemas.base import AnyEvent
from schemas.errors import UnreadableEvent
from schemas.ids import is_uuid7
from schemas.wire import KIND_HEADER, VERSION_HEADER, ManyDecoder, header
from services.archive.chain import DIGEST_BYTES, ArchivedRecord, QueryFields
from services.archive.extras import need
from services.bus import StoredRecord


class _Head(msgspec.Struct):
    request_id: Any = None
    tenant: Any = None
    at: Any = None
    key_b64: Any = None  # of a dead letter: the key of the record that it holds


_HEAD: Final = msgspec.json.Decoder(_Head)

Headers = tuple[tuple[str, bytes | None], ...]

RECORD_COLUMNS: Final = ("partition", "offset", "timestamp_ms", "key", "value", "header_names", "header_values")
"""The columns that a record of the log consists of."""

EVENT_COLUMNS: Final = ("key", "value", "header_names", "header_values")
"""The columns from which events are decoded."""

QUERY_SCHEMA_NAMES: Final = (*RECORD_COLUMNS, *QueryFields._fields)
"""The columns of an export: those of ``RECORD_COLUMNS``, and those for queries."""


@cache
def schema() -> Any:
    pa = need("pyarrow")
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp_ms", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("header_names", pa.list_(pa.string())),
            ("header_values", pa.list_(pa.binary())),
            ("sealed", pa.bool_()),
            ("digest", pa.binary(DIGEST_BYTES)),
            ("kind", text),
            ("request_id", pa.string()),
            ("tenant", text),
            ("at_us", pa.int64()),
        ]
    )


def query_fields(record: StoredRecord) -> QueryFields:
    kind = header(record.headers, KIND_HEADER)  # type: ignore[arg-type]
    request_id = None
    if record.key is not None and len(record.key) == 36:
        text = record.key.decode("ascii", "replace")
        request_id = text if is_uuid7(text) else None
    try:
        head = _HEAD.decode(record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return QueryFields(kind, request_id, None, None)
    tenant = head.tenant if isinstance(head.tenant, str) else None
    at_us = head.at if type(head.at) is int and 0 <= head.at <= 2**53 else None  # True is an int, too
    for other in (head.request_id, _decoded(head.key_b64)):
        if request_id is None and isinstance(other, str) and is_uuid7(other):
            request_id = other
    return QueryFields(kind, request_id, tenant, at_us)


def _decoded(text: Any) -> str | None:
    try:
        return base64.b64decode(text, validate=True).decode("ascii")
    except (TypeError, ValueError):
        return None


def table_of(records: Sequence[ArchivedRecord], digests: Sequence[bytes]) -> Any:
    """Return an Arrow table of the records and their digests. All records must be of one topic."""
    pa = need("pyarrow")
    plain = [each.record for each in records]
    offsets = [0]
    for record in plain:
        offsets.append(offsets[-1] + len(record.headers))
    places = pa.array(offsets, pa.int32())
    names = pa.array([name for record in plain for name, _ in record.headers], pa.string())
    values = pa.array([value for record in plain for _, value in record.headers], pa.binary())
    columns = [
        [record.partition for record in plain],
        [record.offset for record in plain],
        [record.timestamp_ms for record in plain],
        [record.key for record in plain],
        [record.value for record in plain],
        pa.ListArray.from_arrays(places, names),
        pa.ListArray.from_arrays(places, values),
        [each.sealed for each in records],
        list(digests),
        *([each.fields[index] for each in records] for index in range(len(QueryFields._fields))),
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema(), strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema())


def stored_records(topic: str, table: Any) -> Iterator[StoredRecord]:
    """Yield the records in an Arrow table of an archive file. Encrypted values are not decrypted."""
    for batch in table.combine_chunks().to_batches():
        partitions, offsets, times, keys, values = (batch.column(name).to_pylist() for name in RECORD_COLUMNS[:5])
        headers = _headers(batch)
        for partition, offset, time_ms, key, value, header_pairs in zip(
            partitions, offsets, times, keys, values, headers, strict=True
        ):
            yield StoredRecord(topic, partition, offset, time_ms, key, value, header_pairs)


def events_of(table: Any, kinds: Collection[str] | None = None) -> Iterator[AnyEvent]:
    """Yield the events of a table. Events that cannot be decoded are skipped."""
    decoders: dict[Headers, ManyDecoder | None] = {}
    for batch in table.combine_chunks().to_batches():
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        for key, value, headers in zip(keys, values, _headers(batch), strict=True):
            what = headers[:2]
            if what not in decoders:
                if tuple(name for name, _ in what) != (KIND_HEADER, VERSION_HEADER):  # another order than in ``encode``
                    what = headers
                decoders[what] = _decoder(what, kinds)
            decoder = decoders[what]
            event = None if decoder is None else decoder.decode(value, key)
            if event is not None:
                yield event


def _decoder(headers: Headers, kinds: Collection[str] | None) -> ManyDecoder | None:
    try:
        found = ManyDecoder(headers)  # type: ignore[arg-type]
    except UnreadableEvent:
        return None
    return found if kinds is None or found.kind in kinds else None


def archived_records(topic: str, table: Any) -> Iterator[tuple[ArchivedRecord, bytes]]:
    """Yield the records of a table, each with its recorded digest. Sealed values stay encrypted."""
    columns = [table.column(name).to_pylist() for name in ("sealed", "digest", *QueryFields._fields)]
    for record, sealed, digest, *fields in zip(stored_records(topic, table), *columns, strict=True):
        yield ArchivedRecord(record, QueryFields(*fields), bool(sealed)), digest or b""


def _headers(batch: Any) -> Iterator[Headers]:
    names, values = batch.column("header_names"), batch.column("header_values")
    pairs = list(zip(names.flatten().to_pylist(), values.flatten().to_pylist(), strict=True))
    low = 0
    for length in names.value_lengths().to_pylist():
        high = low + (length or 0)
        yield tuple(pairs[low:high])
        low = high
