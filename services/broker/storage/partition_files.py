"""The files of one partition: segments, their indexes, and `state.json`.

`state.json` contains the latest append time, and what the broker remembers about each idempotent producer.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from services.broker.protocol import record_batch as batches
from services.broker.protocol.record_batch import BatchHeader, BatchRejected
from services.broker.storage.compaction import Survivor
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.file_segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    FileSegment,
    OpenSegments,
    TailBudget,
    mark_of,
    read_index,
)
from services.broker.storage.partition_log import NO_TIME, PartitionLog, sequence_of
from services.broker.storage.producer_state import ProducerStates, StoredProducer
from services.broker.storage.segment import LogSegment
from services.broker.storage.segment_index import DamagedBatch, SegmentIndex, StoredIndex, batches_in

logger = logging.getLogger("railbus.broker")

_STATE_FORMAT: Final = 1
_EMPTY_MS: Final = -1
COMPACTING_SUFFIX: Final = ".compacting"

OnBatch = Callable[[BatchHeader], None]


class _StateFile(msgspec.Struct):
    format: int
    end: int
    appended_ms: int
    producers: list[StoredProducer]


class PartitionFiles:
    """The segments of one partition on disk.

    `sync` and `replace` block the event loop until the disk has written the data.
    """

    def __init__(self, folder: Path, opened: OpenSegments, budget: TailBudget) -> None:
        self._folder = folder
        self._opened = opened
        self._budget = budget
        self._segments: dict[int, FileSegment] = {}
        self._state_end = 0
        budget.partitions += 1

    # SegmentStore

    def begin(self, base: int, now_ms: int) -> LogSegment:
        segment = FileSegment(self._path(base), base, now_ms, self._opened, self._budget)
        # The name of the file contains the offset, so a restart finds the offset even if no batch is written.
        if base:
            segment.open_for_append()
        self._segments[base] = segment
        return segment

    def forget(self, segment: LogSegment) -> None:
        path = self._path(segment.base)
        # The index is deleted first, so that no index is left without its segment.
        path.with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        found = self._segments.pop(segment.base, None)
        if found is not None:
            found.close()

    def replace(self, old: Sequence[LogSegment], kept: Iterable[Survivor]) -> LogSegment:
        """Replace the segments `old` by one segment with the batches `kept`.

        If the broker is killed during this, its next start uses either the old segments or the new one.
        """
        path = self._path(old[0].base)
        fresh = FileSegment(
            path.with_suffix(COMPACTING_SUFFIX), old[0].base, old[0].born_ms, self._opened, self._budget
        )
        fresh.path.unlink(missing_ok=True)
        try:
            for batch in kept:
                fresh.append(*batch)
            # Without this sync, a loss of power could lose records that were synced long ago.
            os.fsync(fresh.open_for_append())
            path.with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)
            # After a kill before the rename, the old files are unchanged. After a kill between the rename and a
            # deletion, the next start deletes the old file, because it begins before the new file ends.
            fresh.path.replace(path)
        except OSError:
            fresh.close()
            with contextlib.suppress(OSError):
                fresh.path.unlink(missing_ok=True)
            raise
        fresh.path = path
        fresh.seal()
        for segment in old:
            replaced = self._segments.pop(segment.base, None)
            if replaced is not None:
                replaced.close()
        self._segments[fresh.base] = fresh
        for segment in old[1:]:
            try:
                self.forget(segment)
            except OSError as error:  # the next start deletes the file
                log_storage_error(str(path), error)
        return fresh

    def keep_state(self, end: int, producers: ProducerStates, appended_ms: int) -> None:
        if end == self._state_end:
            return
        fresh = self._folder / "state.json.new"
        try:
            fresh.write_bytes(msgspec.json.encode(_StateFile(_STATE_FORMAT, end, appended_ms, producers.stored())))
            fresh.replace(self._folder / "state.json")
        except OSError as error:
            log_storage_error(str(fresh), error)
            return
        self._state_end = end

    # Loading and closing

    def load(self, log: PartitionLog, now_ms: int, *, trusted: bool) -> int:
        """Restore the log from the files. Return the total size of the segments that had no usable index, in bytes.

        A segment without a usable index is read completely. If `trusted` is false, no index is used.
        """
        state = self._read_state()
        replayed = _Replay(state)
        segments: list[FileSegment] = []
        read_bytes, sparse = 0, SegmentIndex()
        for base, path in stored_segments(self._folder):
            if segments and base != segments[-1].end:
                logger.warning("%s: begins at %d where the log ends at %d, removed", path, base, segments[-1].end)
                self.forget(FileSegment(path, base, now_ms, self._opened, self._budget))
                continue
            found = _matching_index(path) if trusted else None
            unknown = _headers(path, found.end) if found is not None and found.end > replayed.from_offset else []
            if found is None or unknown is None:
                found = _recover(path, base, replayed.note)
                read_bytes += found.mark.size
                self._keep_index(path, found)
            for header in unknown or ():
                replayed.note(header)
            segments.append(FileSegment.stored(path, base, found, now_ms, self._opened, self._budget))
            sparse = found.sparse
        if not segments:
            return 0
        self._segments = {segment.base: segment for segment in segments}
        if replayed.from_offset > segments[-1].end:
            # The end of the log was lost after the state was written. So the state is deleted: a retry of a lost batch
            # must not be acknowledged, not even after a later start when the log has reached this offset again.
            (self._folder / "state.json").unlink()
            replayed = _Replay(None)
            for segment in segments:
                for header in _headers(segment.path, segment.end) or ():
                    replayed.note(header)
        elif state is not None:
            self._state_end = state.end
        segments[-1].continue_with(sparse)
        log.restore(segments, replayed.producers, replayed.appended_ms)
        self._remove_strays()
        return read_bytes

    def sync(self) -> None:
        for segment in self._segments.values():
            if segment.path.exists():
                file = os.open(segment.path, os.O_RDONLY)
                try:
                    os.fsync(file)  # takes a few microseconds if the file has no unwritten pages
                finally:
                    os.close(file)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._budget.partitions -= 1

    def _read_state(self) -> _StateFile | None:
        try:
            state = msgspec.json.decode((self._folder / "state.json").read_bytes(), type=_StateFile)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            logger.warning("%s: cannot be read, every batch is: %s", self._folder / "state.json", error)
            return None
        return state if state.format == _STATE_FORMAT else None

    def _keep_index(self, path: Path, found: StoredIndex) -> None:
        try:
            path.with_suffix(INDEX_SUFFIX).write_bytes(found.sparse.encode(found.end, found.newest_ms, found.mark))
        except OSError as error:
            log_storage_error(str(path), error)

    def _remove_strays(self) -> None:
        for path in self._folder.glob(f"*{INDEX_SUFFIX}"):
            if not path.with_suffix(LOG_SUFFIX).exists():
                path.unlink(missing_ok=True)
        for path in self._folder.glob(f"*{COMPACTING_SUFFIX}"):  # left by a broker that was killed during a compaction
            path.unlink(missing_ok=True)

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:020d}{LOG_SUFFIX}"


class _Replay:
    def __init__(self, state: _StateFile | None) -> None:
        self.from_offset = state.end if state is not None else 0
        self.producers = ProducerStates.restored(state.producers) if state is not None else ProducerStates()
        self.appended_ms = state.appended_ms if state is not None else NO_TIME

    def note(self, header: BatchHeader) -> None:
        if header.base_offset < self.from_offset:
            return
        if header.has_append_time:
            self.appended_ms = max(self.appended_ms, header.max_timestamp_ms)
        self.producers.remember(sequence_of(header), header.base_offset, header.max_timestamp_ms)


def stored_segments(folder: Path) -> list[tuple[int, Path]]:
    """Return (first offset, path) of each segment file in the folder, sorted by offset."""
    found = ((path.stem, path) for path in folder.glob(f"*{LOG_SUFFIX}"))
    return sorted((int(stem), path) for stem, path in found if stem.isdecimal())


def _matching_index(path: Path) -> StoredIndex | None:
    found = read_index(path)
    return found if found is not None and found.mark == mark_of(path.stat()) else None


def _recover(path: Path, base: int, on_batch: OnBatch) -> StoredIndex:
    data = path.read_bytes()
    index, position, end, newest_ms = SegmentIndex(), 0, base, _EMPTY_MS
    for header in _whole_batches(memoryview(data), base):
        newest_ms = max(newest_ms, header.max_timestamp_ms)
        index.note(end, position, newest_ms)
        on_batch(header)
        position += header.size
        end += header.span
    if position < len(data):
        logger.warning("%s: %d bytes after offset %d are incomplete and cut off", path, len(data) - position, end)
        os.truncate(path, position)
    return StoredIndex(end, newest_ms, mark_of(path.stat()), index)


def _whole_batches(data: memoryview, base: int) -> Iterator[BatchHeader]:
    position, expected = 0, base
    while position < len(data):
        rest = data[position:]
        try:
            header = batches.parse(rest)
        except BatchRejected:
            return
        if header.base_offset != expected or not batches.intact(rest, header):
            return
        yield header
        position += header.size
        expected += header.span


def _headers(path: Path, end: int) -> list[BatchHeader] | None:
    data = path.read_bytes()
    try:
        places = list(batches_in(data))
    except DamagedBatch:
        return None
    if places and places[-1].end != end:
        return None
    return [BatchHeader._make(batches.HEADER.unpack_from(data, place.begin)) for place in places]
