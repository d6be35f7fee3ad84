import base64
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from services.archive.chain import ArchivedRecord
from services.archive.extras import need
from services.archive.records import QUERY_SCHEMA_NAMES, query_fields, table_of
from services.bus import StoredRecord
from services.runtime.errors import UserError

BATCH: Final = 50_000


def export_records(records: Iterable[StoredRecord], target: Path) -> int:
    """Write records to a new file, as Parquet or JSON lines. Return the number of records.

    Raises:
        UserError: The file exists, cannot be written, or has an unknown suffix.
    """
    if target.suffix not in {".parquet", ".jsonl"}:
        raise UserError(f"{target}: the name must end with .parquet or .jsonl")
    try:
        with target.open("xb") as file:
            return (_parquet if target.suffix == ".parquet" else _json_lines)(records, file)
    except FileExistsError:
        raise UserError(f"{target}: the file exists; name another") from None
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror})") from None


def _json_lines(records: Iterable[StoredRecord], file: Any) -> int:
    count = 0
    for record in records:
        fields = query_fields(record)
        line = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "kind": fields.kind,
            "request_id": fields.request_id,
            "key_b64": _base64(record.key),
            "value_b64": _base64(record.value),
            "headers": [[name, _base64(value)] for name, value in record.headers],
        }
        file.write(orjson.dumps(line) + b"\n")
        count += 1
    return count


def _parquet(records: Iterable[StoredRecord], file: Any) -> int:
    pq = need("pyarrow.parquet")
    count = 0
    with pq.ParquetWriter(file, _table([]).schema, compression="zstd") as writer:
        source = iter(records)
        while batch := list(islice(source, BATCH)):
            writer.write_table(_table(batch))
            count += len(batch)
    return count


def _table(records: list[StoredRecord]) -> Any:
    pa = need("pyarrow")
    table = table_of([ArchivedRecord(record, query_fields(record)) for record in records], [bytes(32)] * len(records))
    topics = pa.array([record.topic for record in records], pa.string())
    return table.select(QUERY_SCHEMA_NAMES).add_column(0, "topic", topics)


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
