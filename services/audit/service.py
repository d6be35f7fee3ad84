"""The archiver process. It commits no offsets: after a restart, it reads on from the last archived record."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from schemas.topics import TOPIC_NAMED, TOPICS
from services.archive.chain import ArchivedRecord
from services.archive.checkpoint import ChainCheckpoint, anchors_json, data_file
from services.archive.keys import Signer
from services.archive.reader import begin_archive
from services.archive.records import query_fields
from services.archive.sealing import KeyStore, seal_all
from services.archive.store import Store
from services.archive.verify import read_anchors
from services.archive.writer import Conflict, PartitionWriter
from services.audit.buffer import UNIT_BYTES, PartitionBuffer
from services.audit.settings import Settings
from services.bus import Assignment, BusSettings, GroupReader, InFlightLimit, Partition, RawTailReader, StoredRecord
from services.runtime.clock import steady_us
from services.runtime.errors import UserError
from services.runtime.files import write_whole
from services.runtime.logging import logger
from services.runtime.metrics import ARCHIVE_BUFFERED, ARCHIVE_CONFLICTS, ARCHIVE_FILES, ARCHIVED

GROUP: Final = "audit"
LOOK_S: Final = 0.05
"""Time between two checks whether buffered records have to be written to a file."""

RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Waits in seconds after failed writes to the store. The last one repeats. Reading pauses when the buffers are full."""

STALE_S: Final = 10.0
"""An archiver whose store has failed for longer than this many seconds is not ready."""

_log = logger("audit")

T = TypeVar("T")


class ArchiveService:
    """One archiver process. ``on_ready`` is called once, when ``ready`` becomes true.

    Raises:
        UserError: A setting is missing or invalid.
    """

    def __init__(self, settings: Settings, bus: BusSettings, on_ready: Callable[[], None]) -> None:
        if settings.archive is None:
            raise UserError("RAILBUS_ARCHIVE is not set: name the folder of the archive")
        self._settings = settings
        self._store = Store(settings.archive)  # first, so that no key is made if the extra is missing
        self._signer = Signer.load_or_create(settings.audit_key)
        is_new = begin_archive(self._store, self._signer.public_pem)
        if is_new and settings.audit_anchors is not None and settings.audit_anchors.exists() and not self._has_data():
            _write_anchors(settings.audit_anchors, ())  # it has those of another archive
        self._store.remove_abandoned()
        self._seal_keys = None if settings.audit_seal_keys is None else KeyStore(settings.audit_seal_keys, create=True)
        self._on_ready: Callable[[], None] | None = on_ready
        self._limit = InFlightLimit(settings.audit_buffer_mb * 1_048_576 // UNIT_BYTES)
        self._tail = RawTailReader(
            bus, handler=self._on_records, in_flight_limit=self._limit, on_moved=self._on_moved
        )  # fmt: skip
        self._group = GroupReader(
            bus, topics=TOPICS, group=GROUP, handler=None, commit="never", on_assigned=self._on_assigned,
            instance_id=settings.audit_instance,
        )  # fmt: skip
        self._held: frozenset[Partition] = frozenset()
        self._changes: asyncio.Queue[tuple[Partition, bool]] = asyncio.Queue()  # bounded by partitions x rebalances
        self._writers: dict[Partition, PartitionWriter] = {}
        self._buffers: dict[Partition, PartitionBuffer] = {}
        self._writing = 0  # units that were taken out of a buffer and are not on disk yet
        self._anchors: dict[Partition, ChainCheckpoint] = {}
        self._failing_since_s: dict[str, float] = {}  # what fails at the store -> since when, in monotonic seconds

    @property
    def location(self) -> str:
        """The archive's location without credentials."""
        return self._store.location

    @property
    def ready(self) -> bool:
        """Whether the archiver has joined the group, knows where each partition's archive ends, and can write."""
        fails = any(time.monotonic() - since_s > STALE_S for since_s in self._failing_since_s.values())
        return self._group.joined and self._held <= self._buffers.keys() and not fails

    async def run(self) -> None:
        """Archive until cancelled. Then write the buffered records.

        Raises:
            UserError: The broker refuses the credentials, or a partition's newest file is not signed with this
                archiver's key.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tail.run())
                tasks.create_task(self._group.run())
                tasks.create_task(self._take_changes())
                tasks.create_task(self._write_due())
        finally:
            await self._write_rest()
            if self._seal_keys is not None:
                self._seal_keys.close()

    def _on_assigned(self, assignment: Assignment) -> None:
        self._held = assignment.held
        for partition in sorted(assignment.lost):
            self._buffers.pop(partition, None)  # the partition's next owner reads from the archive's end on
            self._anchors.pop(partition, None)
            self._changes.put_nowait((partition, False))
        for partition in sorted(assignment.gained):
            self._changes.put_nowait((partition, True))
        self._count()

    def _on_records(self, records: Sequence[StoredRecord]) -> None:
        now_us = steady_us()
        for record in records:
            buffer = self._buffers.get((record.topic, record.partition))
            if buffer is not None:
                buffer.add(record, now_us)
        self._count()

    def _on_moved(self, partition: Partition, gone: int, begin: int) -> None:
        # The broker lost the end of the log, perhaps with records that are in the buffer. So read from the archive's
        # end. If retention has deleted records instead, the buffer may have the only copy of some of them.
        if begin < gone and self._buffers.pop(partition, None) is not None:
            self._changes.put_nowait((partition, True))
            self._count()

    async def _take_changes(self) -> None:
        while True:
            (name, number), gained = await self._changes.get()
            await self._tail.unfollow(TOPIC_NAMED[name], number)
            if gained and (name, number) in self._held:
                await self._follow((name, number))

    async def _follow(self, partition: Partition) -> None:
        name, number = partition
        writer = PartitionWriter(self._store, self._signer, name, number)
        state = await self._persistently(writer.open, f"{name}[{number}]: its place in the archive cannot be read")
        self._writers[partition] = writer
        self._buffers[partition] = PartitionBuffer(state.end)
        begin = await self._tail.follow(TOPIC_NAMED[name], number, state.end)
        if begin < state.end:
            _log.error(
                "%s[%d]: the log ends at offset %d, the archive at %d: the log has lost records or was made anew; what"
                " it has below that offset is not archived again: begin a new archive", name, number, begin, state.end,
            )  # fmt: skip
        elif begin > state.end > 0:
            _log.error("%s[%d]: offsets %d to %d are gone: they were deleted before they were archived",
                       name, number, state.end, begin - 1)  # fmt: skip

    async def _write_due(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._on_ready is not None and self.ready:
                on_ready, self._on_ready = self._on_ready, None
                on_ready()
            for partition in self._due():
                await self._write(partition)
            if self._limit.free < self._limit.limit // 2 and self._buffers:
                await self._write(max(self._buffers, key=lambda each: self._buffers[each].units))

    def _due(self) -> list[Partition]:
        oldest_us = steady_us() - self._settings.audit_flush_ms * 1_000
        most = self._settings.audit_file_mb * 1_048_576 // UNIT_BYTES
        return [
            partition
            for partition, buffer in self._buffers.items()
            if buffer.since_us is not None and (buffer.since_us <= oldest_us or buffer.units >= most)
        ]

    async def _write(self, partition: Partition) -> None:
        buffer, writer = self._buffers.get(partition), self._writers.get(partition)
        # Records that arrive meanwhile wait for the next call. Otherwise a busy partition would be written for ever.
        end = 0 if buffer is None else buffer.next_offset
        while buffer and writer is not None and self._buffers.get(partition) is buffer and buffer.start < end:
            before = buffer.units
            start, records = buffer.take()
            self._writing = before - buffer.units
            try:
                checkpoint = await self._persistently(
                    partial(self._append, writer, start, records), f"{partition[0]}[{partition[1]}] cannot be archived"
                )
            except Conflict as conflict:
                ARCHIVE_CONFLICTS.inc()
                _log.warning("%s[%d]: another archiver wrote up to offset %d: going on there",
                             *partition, conflict.state.end)  # fmt: skip
                if self._buffers.get(partition) is buffer:
                    del self._buffers[partition]
                    self._changes.put_nowait((partition, True))
                return
            finally:
                self._writing = 0
                self._count()
            ARCHIVED.labels(partition[0]).inc(checkpoint.count)
            ARCHIVE_FILES.labels(partition[0]).inc()
            self._anchors[partition] = checkpoint
            if self._settings.audit_anchors is not None:
                _write_anchors(self._settings.audit_anchors, _with_older(self._settings.audit_anchors, self._anchors))
            if partition not in self._held:
                del self._anchors[partition]

    async def _write_rest(self) -> None:
        for partition in tuple(self._buffers):
            await self._write(partition)

    def _append(self, writer: PartitionWriter, start: int, records: Sequence[StoredRecord]) -> ChainCheckpoint:
        return writer.append(start, self._sealed(records))

    def _sealed(self, records: Sequence[StoredRecord]) -> list[ArchivedRecord]:
        pairs = [(record, query_fields(record)) for record in records]
        if self._seal_keys is None:
            return [ArchivedRecord(record, fields) for record, fields in pairs]
        return seal_all(pairs, self._seal_keys)

    def _has_data(self) -> bool:
        # An archive may have files although its archive.json was just made, because archive.json was removed.
        return any(data_file(name) is not None for name in self._store.names("data", recursive=True))

    async def _persistently(self, work: Callable[[], T], trouble: str) -> T:
        try:
            for attempt in itertools.count():
                thread = asyncio.ensure_future(asyncio.to_thread(work))
                try:
                    return await asyncio.shield(thread)
                except asyncio.CancelledError:
                    await asyncio.wait({thread})  # no other task may write to the partition meanwhile
                    raise
                except OSError as error:
                    if attempt == 0:
                        _log.error("%s: %s; trying again", trouble, error.strerror or error)
                        self._failing_since_s[trouble] = time.monotonic()
                    await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
        finally:
            self._failing_since_s.pop(trouble, None)
        raise AssertionError("unreachable")

    def _count(self) -> None:
        units = self._writing + sum(buffer.units for buffer in self._buffers.values())
        ARCHIVE_BUFFERED.set(units * UNIT_BYTES)
        self._limit.set_in_flight(units)


def _with_older(path: Path, checkpoints: Mapping[Partition, ChainCheckpoint]) -> Iterable[ChainCheckpoint]:
    # The file has anchors of partitions without new records since the start, and of partitions of another archiver.
    try:
        older = read_anchors(path.read_bytes()) or ()
    except OSError:
        older = ()
    return ({(each.topic, each.partition): each for each in older} | dict(checkpoints)).values()


def _write_anchors(path: Path, checkpoints: Iterable[ChainCheckpoint]) -> None:
    try:
        write_whole(path, anchors_json(checkpoints))
    except OSError as error:
        _log.error("RAILBUS_AUDIT_ANCHORS=%s cannot be written: %s", path, error.strerror)
