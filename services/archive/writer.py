"""Appends to one partition of an archive.

The archive alone says at which offset it ends. A file is named by the offset at which the file before it ended, and can
be created only once. So a second archiver, or one that was paused and lost its partition, cannot add a record twice. If
two archivers continue at the same offset, the first one creates the file, and the other continues behind that file.
"""

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


class Conflict(Exception):
    """Another archiver has written a file from the same offset on. The caller must continue at ``state``."""

    def __init__(self, state: ChainState) -> None:
        super().__init__("another archiver was first")
        self.state = state


class PartitionWriter:
    """Appends records of one partition; call ``open`` first to find where to continue.

    Attributes:
        state: The end of the partition's archived records.
        newest: The checkpoint of its newest file; None while there is none.
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
        """Return the end of the partition's archived records, where the archiver must continue.

        Raises:
            UserError: The newest file is not signed with this archiver's key.
            OSError: The store does not answer.
        """
        files = self._files()
        self.newest = None
        self.state = state_after(None, self._topic, self._partition)
        if files:
            self._continue_after(max(files, key=lambda file: file.start))
        return self.state

    def append(self, start: int, records: Sequence[ArchivedRecord]) -> ChainCheckpoint:
        """Write one file of records of one day, in order of their offsets. The file is on disk when this returns.

        Args:
            start: The offset at which the caller expects the archive to end. From there to the last of these records,
                the log has no other records.
            records: The records, at least one.

        Raises:
            Conflict: The archive does not end at ``start``, or another archiver was first. Nothing was written.
            OSError: The store cannot be written. Either nothing was written, or the whole file.
        """
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
        if self._store.exists(checkpoint_path(self._topic, self._partition, start)):  # perhaps in a file of another day
            raise Conflict(self.open())
        content = _parquet(records, digests, checkpoint)
        try:
            self._store.put_new(name, content)
        except Exists:
            raise Conflict(self.open()) from None
        return self._note(checkpoint, content)

    def _files(self) -> list[DataFile]:
        """Return all files of the partition. The newest file may be of an older day, because clocks may be set back."""
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
        """Record a file as the newest. Also store its checkpoint as a file, so that a missing data file is noticed."""
        noted = replace(checkpoint, file_sha256=hashlib.sha256(content).hexdigest())
        self.newest = checkpoint
        self.state = state_after(checkpoint, self._topic, self._partition)
        with suppress(Exists):
            self._store.put_new(
                checkpoint_path(noted.topic, noted.partition, noted.start), self._signer.sign(noted).to_json()
            )
        return checkpoint


def checkpoint_in(store: Store, name: str) -> ChainCheckpoint | None:
    """Return the checkpoint in a data file; None if it has none, is no Parquet file, or is damaged in any way."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    try:
        metadata = pq.read_metadata(store.path(name), filesystem=store.filesystem).metadata or {}
    except (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError):
        return None
    return read_checkpoint(metadata.get(CHECKPOINT_KEY, b""))


def day_of(time_ms: int) -> str:
    """Return the UTC date of a time, as ``YYYY-MM-DD``."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d")


def _parquet(records: Sequence[ArchivedRecord], digests: Sequence[bytes], checkpoint: ChainCheckpoint) -> Any:
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    table = table_of(records, digests)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression=COMPRESSION, store_schema=False) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({CHECKPOINT_KEY: checkpoint.to_json()})
    return sink.getvalue()
