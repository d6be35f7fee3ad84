"""Read the files and records of an archive."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from schemas.base import AnyEvent
from schemas.errors import UnreadableEvent
from schemas.ids import time_ms
from schemas.topics import DAY_MS
from schemas.trace import is_traceparent
from schemas.wire import TRACE_HEADER, decode, header
from services.archive.checkpoint import DataFile, data_file
from services.archive.extras import need
from services.archive.records import EVENT_COLUMNS, RECORD_COLUMNS, events_of, stored_records
from services.archive.sealing import KeyStore, owner_of, unseal
from services.archive.store import Exists, Store
from services.archive.writer import day_of
from services.bus import Received, StoredRecord
from services.runtime.errors import UserError

ABOUT: Final = "archive.json"
FORMAT: Final = 1

SEALED_COLUMNS: Final = (*RECORD_COLUMNS, "sealed", "request_id", "tenant")
"""The columns of a record, and those that identify the key with which its value is encrypted."""

BATCH_ROWS: Final = 16_384
"""Maximum number of a data file's rows that ``Archive.batches`` holds in memory at the same time."""


def begin_archive(store: Store, public_pem: bytes) -> bool:
    """Create the file with the archive's format and public key, if it does not exist. Return whether it was created.

    Raises:
        UserError: The archive's format is too new for this version of Railbus, or the archive cannot be written.
    """
    try:
        store.put_new(ABOUT, orjson.dumps({"format": FORMAT, "public_key": public_pem.decode()}))
    except Exists:
        Archive(store)
        return False
    except OSError as error:
        raise UserError(f"the archive {store.location} cannot be written: {error.strerror or error}") from None
    return True


class UnreadableFile(UserError):
    """A file of an archive is damaged, or cannot be read from the store."""

    def __init__(self, where: str, error: Exception) -> None:
        reason = " ".join(str(error)[:300].split())
        super().__init__(f"the archive cannot be read: {where}: {reason}; `railbus audit verify` says what was changed")


class Archive:
    """A reader of one archive.

    Args:
        store: The folder or object store of the archive.
        keys: The keys that decrypt sealed values. Without keys, sealed values are read as None.

    Raises:
        UserError: There is no archive, or its format is too new for this version of Railbus.
    """

    def __init__(self, store: Store, keys: KeyStore | None = None) -> None:
        self.store = store
        self._keys = keys
        try:
            about = orjson.loads(store.read(ABOUT))
            self.public_pem = str(about["public_key"]).encode()
            version = int(about["format"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"there is no archive at {store.location}: `railbus up --archive DIR` writes one, see --archive"
            ) from None
        if version > FORMAT:
            raise UserError(f"the archive {store.location} has format {version}, this version reads {FORMAT}: upgrade")

    def files(
        self, topics: Collection[str] | None = None, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[DataFile]:
        """Return the data files of ``topics`` from the UTC day of ``from_ms`` to the UTC day of ``to_ms``.

        Both days are included. None means all topics, or no limit in time. The files are sorted by topic, partition and
        start offset.
        """
        first = "" if from_ms is None else day_of(max(from_ms, 0))
        last = "~" if to_ms is None else day_of(to_ms)
        found: list[DataFile] = []
        for folder in self.store.names("data"):
            topic = folder.rpartition("topic=")[2]
            if topics is not None and topic not in topics:
                continue
            for day in self.store.names(folder):
                if first <= day.rpartition("day=")[2] <= last:
                    found += [file for name in self.store.names(day) if (file := data_file(name)) is not None]
        return sorted(found)

    def table(self, file: DataFile, columns: Sequence[str], **filters: Any) -> Any:
        """Read columns of a file as an Arrow table. ``filters`` maps column names to the values that rows must have."""
        pq = need("pyarrow.parquet")
        wanted = [(name, "=", value) for name, value in filters.items()] or None
        with self._reading(file):
            return pq.read_table(
                self.store.path(file.path), columns=list(columns), filters=wanted, filesystem=self.store.filesystem,
                partitioning=None,
            )  # fmt: skip

    def batches(self, file: DataFile, columns: Sequence[str]) -> Iterator[Any]:
        """Yield a file's rows in order, as Arrow tables of at most ``BATCH_ROWS`` rows."""
        pa, pq = need("pyarrow"), need("pyarrow.parquet")
        with self._reading(file):
            opened = pq.ParquetFile(self.store.path(file.path), filesystem=self.store.filesystem)
        with opened:
            batches = opened.iter_batches(BATCH_ROWS, columns=list(columns))
            while True:
                with self._reading(file):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield pa.Table.from_batches([batch])

    def request(self, request_id: str) -> Iterator[StoredRecord]:
        for file in self.files(from_ms=time_ms(request_id) - DAY_MS):
            table = self.table(file, SEALED_COLUMNS, request_id=request_id)
            if table.num_rows:
                yield from self._opened(file.topic, table)

    def records(self, file: DataFile, from_ms: int = 0, to_ms: int = 2**62) -> Iterator[StoredRecord]:
        """Yield the records of a file with ``from_ms`` <= timestamp < ``to_ms``."""
        sealed = self._has_sealed(file)
        for table in self.batches(file, SEALED_COLUMNS if sealed else RECORD_COLUMNS):
            records = self._opened(file.topic, table) if sealed else stored_records(file.topic, table)
            yield from (record for record in records if from_ms <= record.timestamp_ms < to_ms)

    def events(self, file: DataFile, kinds: Collection[str] | None = None) -> Iterator[list[AnyEvent]]:
        """Yield lists of events from a file. If ``kinds`` is given, yield only events of these kinds.

        Events that cannot be decoded are skipped.
        """
        if self._has_sealed(file):
            events = (event.event for record in self.records(file) if (event := received(record)) is not None)
            yield [event for event in events if kinds is None or type(event).__name__ in kinds]
            return
        for table in self.batches(file, EVENT_COLUMNS):
            yield list(events_of(table, kinds))

    def has_requests_before(self, file: DataFile, at_ms: int) -> bool:
        """Return whether a file may have a record whose request id (a UUIDv7) has a time before ``at_ms``."""
        digits = f"{at_ms:012x}"
        least = f"{digits[:8]}-{digits[8:]}"  # ids sort by their time
        return any(
            found is None or not found.has_min_max or found.min < least
            for found in self._statistics(file, "request_id")
        )

    def _has_sealed(self, file: DataFile) -> bool:
        return any(found is None or not found.has_min_max or found.max for found in self._statistics(file, "sealed"))

    def _statistics(self, file: DataFile, column: str) -> Iterator[Any]:
        """Yield the statistics of a column in each row group. For a row group without statistics, yield None."""
        pq = need("pyarrow.parquet")
        with self._reading(file):
            metadata = pq.read_metadata(self.store.path(file.path), filesystem=self.store.filesystem)
        index = metadata.schema.names.index(column) if column in metadata.schema.names else None
        for number in range(metadata.num_row_groups):
            yield None if index is None else metadata.row_group(number).column(index).statistics

    @contextmanager
    def _reading(self, file: DataFile) -> Iterator[None]:
        try:
            yield
        except (need("pyarrow").ArrowException, OSError) as error:
            raise UnreadableFile(f"{self.store.location}/{file.path}", error) from None

    def _opened(self, topic: str, table: Any) -> Iterator[StoredRecord]:
        columns = [table.column(name).to_pylist() for name in ("sealed", "request_id", "tenant")]
        for record, sealed, request_id, tenant in zip(stored_records(topic, table), *columns, strict=True):
            yield unseal(record, owner_of(request_id, tenant), self._keys) if sealed else record


def received(record: StoredRecord) -> Received | None:
    """Decode a record's event; return None if it cannot be decoded."""
    try:
        event = decode(record.value, record.headers, record.key)  # type: ignore[arg-type]
    except UnreadableEvent:
        return None
    trace = header(record.headers, TRACE_HEADER) if len(record.headers) > 2 else None  # type: ignore[arg-type]
    if trace is not None and not is_traceparent(trace):
        trace = None
    return Received(record.topic, record.partition, record.offset, record.timestamp_ms, event, trace)
