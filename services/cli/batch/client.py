"""Submit and follow batch jobs."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from schemas.batches import BatchAction, BatchControl, BatchCreated
from schemas.topics import BATCHES
from services.bus import BusSettings, Producer
from services.cli.common import reaching_broker
from services.cli.tree.state_file import find_running_tree, state_dir
from services.jobs.ids import BATCH_PREFIX, FILE_PREFIX, new_batch_id
from services.jobs.job_state import JobState
from services.jobs.prepare import JobPlan, prepare
from services.jobs.reader import JobReader
from services.jobs.store import FolderStore
from services.runtime.clock import now_ms, now_us
from services.runtime.errors import UserError
from services.runtime.task_groups import first_error

TENANT: Final = "local"
DIR_VARIABLE: Final = "RAILBUS_BATCH_DIR"
"""Environment variable with the folder of the jobs' files, for a batch service that no ``railbus up`` started here."""

SHOW_S: Final = 0.5
"""Maximum time between two updates of the progress line."""


def job_store(kafka: str | None) -> FolderStore:
    """Return the folder of the batch service at the broker that ``bus_settings(kafka)`` chooses.

    It is the folder of the running ``railbus up`` if that has this broker and a batch service. Otherwise it is the
    folder that ``RAILBUS_BATCH_DIR`` names.

    Raises:
        UserError: There is neither.
    """
    found = find_running_tree(state_dir())
    if found is not None and kafka in {None, found.kafka} and found.batch_dir is not None:
        return FolderStore(Path(found.batch_dir))
    folder = os.environ.get(DIR_VARIABLE)
    if not folder:
        where = "here" if kafka is None else f"here with the broker {kafka}"
        raise UserError(
            f"no batch service runs {where}: start one with `railbus up`, or name the folder of its files with"
            f" {DIR_VARIABLE}"
        )
    return FolderStore(Path(folder))


class JobClient:
    def __init__(self, store: FolderStore, reader: JobReader, producer: Producer) -> None:
        self.store = store
        self._reader = reader
        self._producer = producer
        self._source = f"operator/{os.getpid()}"

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: BusSettings, store: FolderStore) -> AsyncIterator["JobClient"]:
        """Connect to the broker and read the events of all jobs, then run the body of the ``async with`` statement.

        Raises:
            UserError: The broker does not answer, or refuses the credentials or the permission to read. This ends the
                body, too.
        """
        producer = Producer(settings, role="operator", name="railbus-batch")
        reader = JobReader(settings, "operator")
        async with reaching_broker(settings):
            await producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(reader.run())
                async with reaching_broker(settings):
                    await reader.caught_up.wait()
                yield cls(store, reader, producer)
                reading.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            await producer.stop()

    def jobs(self) -> list[JobState]:
        """Return all jobs, newest first."""
        return self._reader.jobs.of_tenant(None)

    def find(self, batch_id: str) -> JobState | None:
        return self._reader.jobs.get(batch_id)

    def job(self, batch_id: str) -> JobState:
        found = self.find(batch_id)
        if found is None:
            raise UserError(f"there is no batch {batch_id[:64]!r}: `railbus batch list` shows all")
        return found

    async def create(self, batch_id: str, **given: Any) -> None:
        created = BatchCreated(**self._about(batch_id, TENANT), input_file=input_file_id(batch_id), **given)
        await self._producer.send(BATCHES, created)
        await self._reader.read_to_end()

    async def control(self, job: JobState, action: BatchAction) -> None:
        event = BatchControl(**self._about(job.batch_id, job.created.tenant), action=action)
        await self._producer.send(BATCHES, event)
        await self._reader.read_to_end()

    async def follow(self, batch_id: str, show: Callable[[JobState], None]) -> JobState:
        """Wait until the job has ended. Call ``show`` with each state, and return the last one."""
        while True:
            job = self.job(batch_id)
            show(job)
            if job.finished is not None:
                return job
            await self._reader.changed(SHOW_S)

    def _about(self, batch_id: str, tenant: str) -> Any:
        return {"batch_id": batch_id, "tenant": tenant, "at": now_us(), "source": self._source}


def fresh_batch_id() -> str:
    return new_batch_id(now_ms(), secrets.randbits(34))


def input_file_id(batch_id: str) -> str:
    return f"{FILE_PREFIX}{batch_id.removeprefix(BATCH_PREFIX)}i"


def store_input(store: FolderStore, batch_id: str, filename: str, write: Callable[[BinaryIO], None]) -> JobPlan:
    """Store the input file of a new job, and check its lines.

    Raises:
        UserError: The input is empty, or two lines have the same ``custom_id``. Or the job ran earlier, the log has
            lost it, and its folder still has results.
    """
    file_id = input_file_id(batch_id)
    folder = store.work_folder(batch_id)
    if any(folder.glob("part-*")):
        raise UserError(
            f"job {batch_id} has results in {folder}, although the log does not name it any more: if no batch service"
            " works on it, keep what you need and remove the folder"
        )
    store.clean(batch_id)  # an earlier run with other options may have been interrupted before it created the job
    with store.writing(file_id, TENANT, filename, "batch", now_ms() // 1_000) as file:
        write(file)
    plan = prepare(store, batch_id, file_id, refuse_bad=False)
    if plan.refused:
        store.clean(batch_id)
        store.delete(file_id)
        sys.stderr.write("".join(f"{fault.message}\n" for fault in plan.refused))
        raise UserError(f"{filename}: nothing was run: correct the {len(plan.refused)} line(s) above")
    return plan
