"""Convert JSONL, plain prompts, CSV or Parquet to lines of OpenAI's batch format."""

import csv
import dataclasses
import hashlib
import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from services.jobs.lines import ENDPOINT, MAX_LINE_BYTES
from services.runtime.errors import UserError

_FIELD: Final = re.compile(r"\{([^{}]+)\}")
MAX_FIELD_BYTES: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """Options for converting an input file to requests.

    Attributes:
        template: Prompt template for the rows of a table. ``{column}`` stands for the row's value in this column.
        id_column: Column with each row's ``custom_id``. If None, the ids are ``line-1``, ``line-2`` and so on.
        body: Fields for the body of each request, such as ``model``. A field that the input file sets is kept.
        system: System message of each request; None if the requests get no system message.
    """

    template: str | None = None
    id_column: str | None = None
    body: dict[str, Any]
    system: str | None = None

    def digest(self) -> str:
        """Return a hash of all options."""
        return hash_of(dataclasses.asdict(self))


def hash_of(value: Any) -> str:
    """Return a hash of a value that JSON can express. Equal values have the same hash on every machine."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_lines(path: Path, options: InputOptions, out: BinaryIO) -> None:
    """Convert a file to requests and write them, one per line.

    Raises:
        UserError: The file cannot be read, or the options do not fit it.
    """
    try:
        for line in _lines(path, options):
            out.write(line)
            if not line.endswith(b"\n"):
                out.write(b"\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: give JSONL, one prompt a line, CSV or Parquet") from None
    except csv.Error as error:
        raise UserError(f"{path} is not CSV: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None


def _lines(path: Path, options: InputOptions) -> Iterator[bytes]:
    match path.suffix.lower():
        case ".csv":
            return _from_rows(_csv_rows(path), options, path)
        case ".parquet":
            return _from_rows(_parquet_rows(path), options, path)
        case suffix:
            for flag, value in (("--template", options.template), ("--id-column", options.id_column)):
                if value is not None:
                    raise UserError(f"{flag} is for tables: {path} is none (.csv, .parquet)")
            if suffix not in {".jsonl", ".ndjson"}:
                return _prompts(path, options)
            if options.system is not None:
                raise UserError(f"--system is for prompts and tables: write the system messages into {path}")
            return _jsonl(path, options)


def _jsonl(path: Path, options: InputOptions) -> Iterator[bytes]:
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        for raw in file:
            if not options.body or len(raw) > MAX_LINE_BYTES:
                yield raw
                continue
            try:
                value = orjson.loads(raw)
                value["body"] = _with_defaults(value["body"], options.body)
                line = orjson.dumps(value)
            except (orjson.JSONDecodeError, TypeError, KeyError):
                yield raw  # ``services.jobs.prepare`` reports the error of this line
            else:
                yield line


def _with_defaults(body: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    given = {**body}  # raises TypeError if the body is no object
    lacking = {name: value for name, value in defaults.items() if given.get(name) is None}
    if given.get("max_completion_tokens") is not None:  # the newer name of max_tokens
        lacking.pop("max_tokens", None)
    return given | lacking


def _prompts(path: Path, options: InputOptions) -> Iterator[bytes]:
    with path.open(encoding="utf-8-sig") as file:
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield _request(f"line-{number}", text.rstrip("\r\n"), options)


def _from_rows(rows: Iterable[dict[str, Any]], options: InputOptions, path: Path) -> Iterator[bytes]:
    if options.template is None:
        raise UserError(f"{path} is a table: give --template, such as --template 'Summarise: {{text}}'")
    # Other text in braces, such as JSON, stands for itself unless a column has this name.
    words = [name for name in _FIELD.findall(options.template) if re.fullmatch(r"\w+", name)]
    needed = [*words, *([options.id_column] if options.id_column else [])]
    for number, row in enumerate(rows, start=1):
        if number == 1 and (missing := sorted(set(needed) - row.keys())):
            raise UserError(f"{path} has no column {missing[0]!r}: its columns are {', '.join(map(str, row))}")
        name = _shown(row[options.id_column]) if options.id_column else f"line-{number}"
        yield _request(name, _FIELD.sub(partial(_filled, row), options.template), options)


def _filled(row: dict[str, Any], field: re.Match[str]) -> str:
    return _shown(row[field[1]]) if field[1] in row else field[0]


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _request(custom_id: str, prompt: str, options: InputOptions) -> bytes:
    messages = [{"role": "system", "content": options.system}] if options.system else []
    body = {**options.body, "messages": [*messages, {"role": "user", "content": prompt}]}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body})


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(MAX_FIELD_BYTES, sys.maxsize))
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'railbus[audit]', or give CSV") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise UserError(f"{path} is not Parquet: {error}") from None
