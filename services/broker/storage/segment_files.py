"""A partition's batches on disk: one append-only file per segment, named by its first offset."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from services.broker.protocol import record_batch as batches
from services.broker.protocol.record_batch import BatchHeader, BatchRejected

logger = logging.getLogger("railbus.broker")

_SUFFIX = ".log"


class SegmentFiles:
    """The sink of one partition. A batch is passed to the operating system when `write` returns.

    Only `close` syncs files to the disk: a sync may take long, and blocks the event loop.
    """

    def __init__(self, folder: Path, base: int = 0) -> None:
        self._folder = folder
        self._base = base
        self._file: int | None = None
        self._size = 0
        self._unsynced: list[Path] = []

    def begin(self, base: int) -> None:
        """Create the next file at once, so that a restart knows the offset even when nothing follows."""
        left, self._file = self._file, None
        before, self._base = self._base, base
        try:
            self._open()
        except OSError:
            self._file, self._base = left, before
            raise
        if left is not None:
            os.close(left)
            self._unsynced.append(self._path(before))

    def write(self, batch: bytes | bytearray) -> None:
        """Append a batch; after a failure the file is as before."""
        file = self._file if self._file is not None else self._open()
        written = 0
        try:
            while written < len(batch):
                written += os.write(file, batch[written:] if written else batch)
        except OSError:
            os.ftruncate(file, self._size)
            raise
        self._size += len(batch)

    def forget(self, base: int) -> None:
        self._path(base).unlink(missing_ok=True)

    def close(self) -> None:
        """Sync to the disk and close."""
        for path in self._unsynced:
            if path.exists():
                sync(os.open(path, os.O_RDONLY))
        self._unsynced.clear()
        if self._file is not None:
            sync(self._file)
            self._file = None

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path(self._base), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        return self._file

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:020d}{_SUFFIX}"


def sync(file: int) -> None:
    """Sync an open file to the disk and close it."""
    os.fsync(file)
    os.close(file)


def stored_segments(folder: Path) -> list[tuple[int, Path]]:
    """Return (first offset, file) of a partition's segments, oldest first."""
    found = ((path.stem, path) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted((int(stem), path) for stem, path in found if stem.isdecimal())


def recover(path: Path, base: int) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield the whole batches of a segment; cut off a last write that is incomplete."""
    data = path.read_bytes()
    position, expected = 0, base
    while position < len(data):
        header = _whole(data, position, expected)
        if header is None:
            logger.warning(
                "%s: %d bytes after offset %d are incomplete and cut off", path, len(data) - position, expected
            )
            os.truncate(path, position)
            return
        yield data[position : position + header.size], header
        position += header.size
        expected += header.record_count


def _whole(data: bytes, position: int, expected: int) -> BatchHeader | None:
    view = memoryview(data)[position:]
    try:
        header = batches.parse(view)
    except BatchRejected:
        return None
    return header if header.base_offset == expected and batches.intact(view, header) else None
