"""Append records to one partition of an archive."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from services.archive.chain import ArchivedRecord, chained, size
from services.archive.checkpoint import (
    CHECKPOINT_KEY,
    ChainCheckpoint,
    ChainState,
    DataFile,
    checkpoint_path,
    data_file,
    read_checkpoint,
    state_after,
)
from services.archive.extras import need
from services.archive.keys import Signer, Verifier
from services.archive.records import table_of
from services.archive.store import Exists, Store
from services.runtime.errors import UserError

ROW_GROUP: Final = 16_384
"""Number of rows of a row group, which is the unit that a query for one request skips or reads."""

COMPRESSION: Final = "zstd"

LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds since the epoch."""


class Conflict(Exception):
    """Another archiver has written to this partition of the archive. ``state`` is the new state of the partition."""

    def __init__(self, state: ChainState) -> None:
        super().__init__("another archiver was first")
        self.state = state


class PartitionWriter:
    """Appends records of one partition. Call ``open`` first.

    Attributes:
        state: State of the partition's hash chain after the last archived record.
        newest: The checkpoint of the newest file; None if there is no file.
    """

    def __init__(self, store: Store, signer: Signer, topic: str, partition: int) -> None:
        self._store = store
        self._signer = signer
        self._trusted = Verifier([signer.public_pem])
        self._topic = topic
        self._partition = partition
        self.newest: ChainCheckpoint | None = None
        self.state = state_after(None, topic, partition)

    def open(self) -> ChainState:
        """Find the end of the partition's archived records, and return the state of the hash chain there.

        If the newest data file has no separate checkpoint file, write the checkpoint file.

        Raises:
            UserError: The newest data file has no valid checkpoint that was signed with this archiver's key.
            OSError: The store cannot be read or written.
        """
        files = self._files()
        self.newest = None
        self.state = state_after(None, self._topic, self._partition)
        if files:
            self._continue_after(max(files, key=lambda file: file.start))
        return self.state

    def append(self, start: int, records: Sequence[ArchivedRecord]) -> ChainCheckpoint:
        """Write records of one day to a new file, durably.

        Raises:
            Conflict: The archive of the partition does not end at ``start``.
            UserError: The file that begins at ``start`` was removed, but the store still has its checkpoint.
            OSError: The store cannot be written.
        """
        # The start offset is part of the file's name, and a file is created only once. So two archivers that continue
        # at the same offset cannot both write the same records.
        # The records must be sorted by offset.
        if start != self.state.end:
            raise Conflict(self.open())
        state = self.state
        plain = [each.record for each in records]
        digests = list(chained(state.head, records))
        checkpoint = self._signer.sign(
            ChainCheckpoint(
                topic=self._topic,
                partition=self._partition,
                start=start,
                first=plain[0].offset,
                last=plain[-1].offset,
                count=len(plain),
                total=state.total + len(plain),
                length=state.length + sum(map(size, plain)),
                from_ms=min(record.timestamp_ms for record in plain),
                to_ms=max(record.timestamp_ms for record in plain),
                before=state.head.hex(),
                head=digests[-1].hex(),
            )
        )
        name = DataFile(self._topic, self._partition, start, day_of(plain[0].timestamp_ms)).path
        noted = checkpoint_path(self._topic, self._partition, start)
        if self._store.exists(noted):  # perhaps in a file of another day
            if self.open().end == start:  # no other archiver will ever write this file
                raise UserError(
                    f"the archive {self._store.location}: the file of {noted} was removed: put the file back, or, if it"
                    " is lost, move the checkpoint out of the archive and keep it"
                )
            raise Conflict(self.state)
        content = _parquet(records, digests, checkpoint)
        try:
            self._store.put_new(name, content)
        except Exists:
            raise Conflict(self.open()) from None
        return self._note(checkpoint, content)

    def _files(self) -> list[DataFile]:
        # All days are listed, because the newest file can be of an older day if a clock was set back.
        days = list(self._store.names(f"data/topic={self._topic}"))
        found = [data_file(name) for day in days for name in self._store.names(day)]
        return [file for file in found if file is not None and file.partition == self._partition]

    def _continue_after(self, file: DataFile) -> None:
        checkpoint = checkpoint_in(self._store, file.path)
        if checkpoint is None or (checkpoint.topic, checkpoint.partition, checkpoint.start) != (
            file.topic, file.partition, file.start,
        ) or not self._trusted.is_signed(checkpoint):  # fmt: skip
            raise UserError(
                f"the archive {self._store.location}: {file.path} is not signed with the key of RAILBUS_AUDIT_KEY: give"
                " this archiver the archive's own key, or move the file away if it was put there by somebody else"
            )
        self._note(checkpoint, self._store.read(file.path))

    def _note(self, checkpoint: ChainCheckpoint, content: Any) -> ChainCheckpoint:
        noted = replace(checkpoint, file_sha256=hashlib.sha256(content).hexdigest())
        self.newest = checkpoint
        self.state = state_after(checkpoint, self._topic, self._partition)
        # The separate checkpoint file shows that a data file existed if that file is removed later.
        with suppress(Exists):
            self._store.put_new(
                checkpoint_path(noted.topic, noted.partition, noted.start), self._signer.sign(noted).to_json()
            )
        return checkpoint


def checkpoint_in(store: Store, name: str) -> ChainCheckpoint | None:
    """Read the checkpoint in a data file; return None if the file is damaged or has no checkpoint."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    try:
        metadata = pq.read_metadata(store.path(name), filesystem=store.filesystem).metadata or {}
    except (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError):
        return None
    return read_checkpoint(metadata.get(CHECKPOINT_KEY, b""))


def day_of(time_ms: int) -> str:
    """Return the UTC date of a time, as ``YYYY-MM-DD``. For a time after the year 9999, return ``9999-12-31``."""
    return datetime.fromtimestamp(min(time_ms, LAST_MS) / 1_000, UTC).strftime("%Y-%m-%d")


def _parquet(records: Sequence[ArchivedRecord], digests: Sequence[bytes], checkpoint: ChainCheckpoint) -> Any:
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    table = table_of(records, digests)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression=COMPRESSION, store_schema=False) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({CHECKPOINT_KEY: checkpoint.to_json()})
    return sink.getvalue()
