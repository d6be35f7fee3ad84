"""The files and batch jobs behind ``/v1/files`` and ``/v1/batches``."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from schemas.batches import BatchControl, BatchCreated, BatchEvent
from schemas.topics import BATCHES
from services.bus import BusError, BusSettings, Producer
from services.edge.batches.objects import parse_metadata, parse_window
from services.edge.errors import ApiError
from services.jobs.ids import new_batch_id
from services.jobs.job_state import JobState
from services.jobs.lines import ENDPOINT
from services.jobs.reader import JobReader
from services.jobs.store import FolderStore, StoredFile, new_file_id
from services.runtime.clock import now_ms, now_us
from services.runtime.errors import UserError
from services.runtime.logging import logger

ANSWER_S: Final = 5.0
"""Maximum time to wait until the jobs have been read from the topic, in seconds."""

RETRY_S: Final = 60.0
"""If the broker refused access to the topic, reading can start again after this many seconds."""

_log = logger("edge")


@dataclass(slots=True)
class _NewJob:
    """A job that is being written to the log.

    Attributes:
        written: Whether the job is on the log. It may take as long as the log acknowledges nothing.
        awaited: Whether a call waits for ``written``. Otherwise a call that repeats the job takes it over.
    """

    created: BatchCreated
    written: asyncio.Task[bool]
    awaited: bool = True

    def repeated_by(self, created: BatchCreated) -> bool:
        return not self.awaited and _wanted(self.created) == _wanted(created)


class JobService:
    """Keeps the files of tenants in a folder, and the batch jobs of tenants on the topic ``railbus.batches``.

    Args:
        folder: Folder of the files; None turns files and batches off.
        source: Name of this edge.
        file_bytes: Maximum size of a file, in bytes.
        tenant_files: Maximum number of files of a tenant.
        tenant_jobs: Maximum number of unfinished jobs of a tenant.

    Raises:
        UserError: The folder cannot be used.
    """

    def __init__(
        self, folder: Path | None, bus: BusSettings, producer: Producer, source: str, *, file_bytes: int,
        tenant_files: int, tenant_jobs: int,
    ) -> None:  # fmt: skip
        self._store = None if folder is None else FolderStore(folder)
        self._bus = bus
        self._producer = producer
        self._source = source
        self._file_bytes = file_bytes
        self._tenant_files = tenant_files
        self._tenant_jobs = tenant_jobs
        self._asked = asyncio.Event()
        self._reader: JobReader | None = None
        self._reading = asyncio.Event()
        self._uploads: dict[str, int] = {}
        self._new: dict[str, _NewJob] = {}  # by batch id; at most ``tenant_jobs`` of a tenant
        self._deleting: set[str] = set()  # ids of files

    async def run(self) -> None:
        """Read the topic ``railbus.batches`` until cancelled."""
        # Reading starts only when a method is called that needs the jobs.
        while True:
            await self._asked.wait()
            self._reader = JobReader(self._bus, "edge")
            self._reading.set()
            try:
                await self._reader.run()
            except* UserError as errors:
                _log.warning("/v1/batches has no data: %s", errors.exceptions[0])
                self._reader = None
                self._reading.clear()
                self._asked.clear()
                await asyncio.sleep(RETRY_S)

    @property
    def store(self) -> FolderStore:
        """The folder with the tenants' files and job data.

        Raises:
            ApiError: 503, if no folder is configured.
        """
        if self._store is None:
            raise ApiError(503, "Files and batches are turned off here.", code="batches_off")
        return self._store

    async def upload(self, tenant: str, filename: str, chunks: AsyncIterator[bytes]) -> StoredFile:
        """Store a file.

        Raises:
            ApiError: 413, if the file is too large; 429, if the tenant has too many files; 503, if uploads are off or
                the file cannot be written.
        """
        store = self.store
        count = len(await asyncio.to_thread(store.files, tenant)) + self._uploads.get(tenant, 0)
        if count >= self._tenant_files:
            raise ApiError(429, f"At most {self._tenant_files} files: delete some first.", code="too_many_files")
        file_id, length = new_file_id(), 0
        self._uploads[tenant] = self._uploads.get(tenant, 0) + 1
        try:
            with ExitStack() as stack:
                file = stack.enter_context(store.writing(file_id, tenant, filename, "batch", now_ms() // 1_000))
                async for chunk in chunks:
                    length += len(chunk)
                    if length > self._file_bytes:
                        message = f"The file is larger than {self._file_bytes:,} bytes."
                        raise ApiError(413, message, code="request_too_large", param="file")
                    await asyncio.to_thread(file.write, chunk)
                await asyncio.to_thread(stack.pop_all().close)  # syncs the file to disk, which may take seconds
        except OSError as error:
            raise ApiError(503, f"The file cannot be stored: {error.strerror}.", code="batches_off") from None
        finally:
            self._uploads[tenant] -= 1
        return self.file(tenant, file_id)

    def file(self, tenant: str, file_id: str) -> StoredFile:
        """Return a file's metadata.

        Raises:
            ApiError: 404, if the tenant has no such file.
        """
        found = self.store.find(file_id)
        if found is None or found.tenant != tenant or file_id in self._deleting:
            raise ApiError(404, f"No such File object: {file_id[:64]}", code="file_not_found", param="id")
        return found

    def open(self, file: StoredFile) -> BinaryIO:
        return self.store.open(file.file_id)

    async def files(self, tenant: str) -> list[StoredFile]:
        """Return the tenant's files, newest first."""
        return await asyncio.to_thread(self.store.files, tenant)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            ApiError: 404, if the tenant has no such file; 409, if an unfinished job needs it.
        """
        self.file(tenant, file_id)
        active = [job.created for job in (await self._jobs()).jobs.active()]
        self.file(tenant, file_id)  # again, because another call may have deleted it meanwhile
        active += [new.created for new in self._new.values()]
        if any(created.input_file == file_id for created in active):
            raise ApiError(409, "A batch that has not ended needs this file: cancel it first.", code="file_in_use")
        self._deleting.add(file_id)
        try:
            await asyncio.to_thread(self.store.delete, file_id)
        finally:
            self._deleting.discard(file_id)

    async def create(self, tenant: str, body: dict[str, Any]) -> JobState:
        """Submit the job that the JSON object ``body`` describes.

        If an earlier call submitted the same job, and has failed because the log has not acknowledged it yet, wait for
        that job instead.

        Raises:
            ApiError: 400, if a field is not valid; 404, if the tenant has no such input file; 429, if the tenant has
                too many unfinished jobs; 503, if batches are off or the log cannot be reached in time.
        """
        self.store  # noqa: B018 - raises where batches are off
        if body.get("endpoint") != ENDPOINT:
            raise ApiError(400, f"endpoint must be {ENDPOINT}.", code="invalid_value", param="endpoint")
        completion_ms, metadata = parse_window(body.get("completion_window")), parse_metadata(body.get("metadata"))
        file_id = body.get("input_file_id")
        if not isinstance(file_id, str):
            raise ApiError(400, "input_file_id must name a file.", code="invalid_value", param="input_file_id")
        file = self.file(tenant, file_id)
        if file.purpose != "batch":
            message = "The input file must have the purpose 'batch'."
            raise ApiError(400, message, code="invalid_value", param="input_file_id")
        reader = await self._jobs()
        self.file(tenant, file_id)  # again, because another call may have deleted it meanwhile
        batch_id = new_batch_id(now_ms(), secrets.randbits(34))
        created = BatchCreated(
            **self._about(batch_id, tenant), input_file=file_id, completion_ms=completion_ms, bad_lines="refuse",
            metadata=metadata,
        )  # fmt: skip
        new = next((each for each in self._new.values() if each.repeated_by(created)), None)
        if new is None:
            self._check_count(tenant, reader)
            new = _NewJob(created, asyncio.create_task(self._write(reader, created)))
            self._new[batch_id] = new
        return await self._wait_for(new, reader)

    def _check_count(self, tenant: str, reader: JobReader) -> None:
        active = [job.created for job in reader.jobs.active()]
        active += [new.created for batch_id, new in self._new.items() if reader.jobs.get(batch_id) is None]
        if sum(created.tenant == tenant for created in active) >= self._tenant_jobs:
            message = f"At most {self._tenant_jobs} batches at a time: wait until one has ended, or cancel one."
            raise ApiError(429, message, code="too_many_batches")

    async def _write(self, reader: JobReader, created: BatchCreated) -> bool:
        # In a task of its own: the producer goes on even if the call has timed out or its client has left.
        try:
            await self._producer.send(BATCHES, created)
            # A call that asked for the end of the log before may not read this job, so ``_new`` still keeps it.
            async with asyncio.timeout(ANSWER_S):
                await reader.read_to_end()
        except (TimeoutError, BusError):
            return False
        finally:
            del self._new[created.batch_id]
        return True

    async def _wait_for(self, new: _NewJob, reader: JobReader) -> JobState:
        new.awaited = True
        try:
            async with asyncio.timeout(ANSWER_S):
                written = await asyncio.shield(new.written)
        except TimeoutError:
            raise _no_log() from None
        finally:
            new.awaited = False
        found = reader.jobs.get(new.created.batch_id) if written else None
        if found is None:
            raise _no_log()
        return found

    async def job(self, tenant: str, batch_id: str) -> JobState:
        """Return a job.

        Raises:
            ApiError: 404, if the tenant has no such job.
        """
        self.store  # noqa: B018 - raises where batches are off
        found = (await self._jobs()).jobs.get(batch_id)
        if found is None or found.created.tenant != tenant:
            raise ApiError(404, f"No batch found with id '{batch_id[:64]}'.", code="batch_not_found", param="batch_id")
        return found

    async def jobs(self, tenant: str) -> list[JobState]:
        """Return the tenant's jobs, newest first."""
        self.store  # noqa: B018 - raises where batches are off
        return (await self._jobs()).jobs.of_tenant(tenant)

    async def cancel(self, tenant: str, batch_id: str) -> JobState:
        """Cancel a job.

        Raises:
            ApiError: 404, if the tenant has no such job; 409, if the job has ended.
        """
        job = await self.job(tenant, batch_id)
        if job.status == "cancelling":
            return job
        if job.finished is not None:
            message = f"Cannot cancel a batch with status '{job.status}'."
            raise ApiError(409, message, code="batch_has_ended")
        return await self._tell(await self._jobs(), BatchControl(**self._about(batch_id, tenant), action="cancel"))

    async def _jobs(self) -> JobReader:
        self._asked.set()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._reading.wait()
                if (reader := self._reader) is None:
                    raise _no_log()
                await reader.caught_up.wait()
                await reader.read_to_end()
                return reader
        except TimeoutError:
            raise _no_log() from None

    async def _tell(self, reader: JobReader, event: BatchEvent) -> JobState:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._producer.send(BATCHES, event)
                await reader.read_to_end()
        except (TimeoutError, BusError):
            raise _no_log() from None
        found = reader.jobs.get(event.batch_id)
        if found is None:
            raise _no_log()
        return found

    def _about(self, batch_id: str, tenant: str) -> Any:
        return {"batch_id": batch_id, "tenant": tenant, "at": now_us(), "source": self._source}


def _wanted(created: BatchCreated) -> tuple[object, ...]:
    return created.tenant, created.input_file, created.completion_ms, created.metadata


def _no_log() -> ApiError:
    return ApiError(503, "The log cannot be reached.", code="log_unavailable", retry_after_s=1)
