"""Copy a finished job's results to a folder: ``results.jsonl``, ``errors.jsonl`` and ``results.parquet``."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from schemas.batches import BatchFinished
from services.jobs.store import FolderStore

ROWS: Final = 2_048
"""Maximum number of rows in memory while Parquet is written."""


def write_outputs(store: FolderStore, end: BatchFinished, out: Path) -> list[Path]:
    """Write the result files and return their paths. Each file is replaced atomically."""
    written = []
    for name, file_id in (("results.jsonl", end.output_file), ("errors.jsonl", end.error_file)):
        target = out / name
        fresh = target.with_name(f".{name}.new")
        with fresh.open("wb") as file:
            if file_id is not None:
                with store.open(file_id) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
        fresh.replace(target)
        written.append(target)
    table = out / "results.parquet"
    if _write_parquet(written, table):
        written.append(table)
    return written


def _write_parquet(sources: list[Path], target: Path) -> bool:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return False
    text, count = pa.string(), pa.int64()
    schema = pa.schema(
        [
            ("custom_id", text), ("content", text), ("finish_reason", text), ("model", text), ("prompt_tokens", count),
            ("completion_tokens", count), ("error_code", text), ("error_message", text), ("request_id", text),
        ]
    )  # fmt: skip
    fresh = target.with_name(f".{target.name}.new")
    with parquet.ParquetWriter(fresh, schema) as writer:
        for rows in _slices(sources):
            writer.write_table(pa.Table.from_pylist(rows, schema))
    fresh.replace(target)
    return True


def _slices(sources: list[Path]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for source in sources:
        with source.open("rb") as file:
            for raw in file:
                rows.append(_row(orjson.loads(raw)))
                if len(rows) >= ROWS:
                    yield rows
                    rows = []
    if rows:
        yield rows


def _row(line: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"custom_id": line["custom_id"]}
    if (error := line["error"]) is not None:
        return row | {"error_code": error["code"], "error_message": error["message"]}
    response = line["response"]
    body = response["body"]
    choice, usage = body["choices"][0], body["usage"]
    return row | {
        "content": choice["message"]["content"],
        "finish_reason": choice["finish_reason"],
        "model": body["model"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "request_id": response["request_id"],
    }
