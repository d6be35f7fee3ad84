"""The process of a batch service. One member of the consumer group runs all jobs; the others are standbys."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import structs

from schemas.batches import BatchFinished, BatchProgress, LineFault
from schemas.errors import MalformedEvent
from schemas.registry import read_kinds
from schemas.side_events import Cancel
from schemas.topics import BATCHES, CONTROL, REQUESTS_BATCH, STREAMS
from services.batch.core import BatchConfig, BatchCore, Positions
from services.batch.disk_retries import repeat, repeat_in_thread, wait_for_retry
from services.batch.figures import job_figures, set_gauges
from services.batch.job import AskCancel, FinishJob, JobCheckpoint, RecordResult, SubmitLine
from services.batch.part_file import JobFiles
from services.batch.settings import Settings
from services.bus import (
    Assignment,
    BusError,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Partition,
    Position,
    Producer,
    Received,
    TailReader,
    UnreadableRecord,
)
from services.jobs.ids import JOB_CHARS
from services.jobs.job_state import JobState
from services.jobs.lines import BadLine
from services.jobs.prepare import JobPlan, is_prepared, prepare
from services.jobs.reader import JobReader
from services.jobs.result_lines import LineAnswer
from services.jobs.results import write_results
from services.jobs.store import FolderStore
from services.runtime.clock import now_ms, now_us, steady_us
from services.runtime.logging import logger
from services.runtime.metrics import BATCH_LINES, BATCH_RETRIES, labelled

GROUP: Final = "batch"
STEP_S: Final = 0.1
"""Maximum time between two checks for due work, in seconds."""

IDLE_S: Final = 2.0
"""Maximum time between two checks while there is no job, in seconds."""

REPORT_S: Final = 1.0
"""Interval in seconds at which the metrics of the jobs are updated."""

MOST_EFFECTS: Final = 10_000
"""Maximum number of effects that wait to be performed. Beyond it, reading pauses."""

LOST_S: Final = 30.0
"""Seconds without a new progress event after which this service takes back a job that another service has taken over.
This service holds the partition, so the other one is dead, or leaves the job when it reads the higher epoch."""

_log = logger("batch")


class BatchService:
    """One batch service.

    Args:
        on_ready: Called once, when the service has joined the group and knows all jobs.

    Raises:
        UserError: The folder of the jobs' files cannot be used.
    """

    def __init__(self, settings: Settings, bus: BusSettings, on_ready: Callable[[], None]) -> None:
        self._settings = settings
        self._bus = bus
        self._on_ready: Callable[[], None] | None = on_ready
        self._source = f"batch/{secrets.token_hex(4)}"
        self._store = FolderStore(settings.batch_dir)
        self._core = BatchCore(
            BatchConfig(
                partitions=bus.partitions, governance=settings.governance, source=self._source,
                line_timeout_us=settings.batch_line_timeout_ms * 1_000,
            )
        )  # fmt: skip
        self._limit = InFlightLimit(MOST_EFFECTS)
        self._producer = Producer(bus, role="batch")
        self._reader = JobReader(bus, "batch", self._on_change)
        kinds = read_kinds("batch", STREAMS, REQUESTS_BATCH)
        self._tail = TailReader(
            bus, handler=self._on_records, in_flight_limit=self._limit,
            record_filter=lambda kind, key: kind in kinds and key is not None and key[:JOB_CHARS] in self._wanted,
            on_moved=self._on_moved,
        )  # fmt: skip
        # The member with the only partition of the topic takes over each unfinished job, by an event of a higher epoch.
        self._group = GroupReader(
            bus, topics=(BATCHES,), group=GROUP, handler=None, commit="never", on_assigned=self._on_assigned,
            instance_id=settings.batch_instance,
        )  # fmt: skip
        self._wanted: frozenset[bytes] = frozenset()
        self._owner = False
        self._files: dict[str, JobFiles] = {}
        self._following = False
        self._effects: deque[Any] = deque()  # bounded by the in-flight limit and the jobs' windows
        self._begun: dict[str, asyncio.Task[None]] = {}
        # Jobs that another service has taken over: the newest progress event, and since when it has been the newest.
        self._lost: dict[str, tuple[BatchProgress | None, int]] = {}
        self._preparing = asyncio.Semaphore(1)  # the memory that it needs grows with the number of the input's lines
        self._wake = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether the service has joined the consumer group and knows all jobs."""
        return self._group.joined and self._reader.caught_up.is_set()

    async def run(self) -> None:
        """Run jobs until cancelled.

        Raises:
            UserError: The broker refuses the credentials.
        """
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (self._reader.run(), self._tail.run(), self._group.run(), self._work(), self._report()):
                    self._tasks.create_task(work)
        finally:
            self._forget()
            await self._producer.stop()

    def _on_assigned(self, assignment: Assignment) -> None:
        self._owner = bool(assignment.held)
        self._lost.clear()  # only now is it certain that this service, and no other, holds the jobs
        if assignment.lost:  # also if it has the partition again: another service had it in between
            self._forget()
        self._wake.set()

    def _on_moved(self, partition: Partition, gone: int, begin: int) -> None:
        if begin < gone:
            # The broker lost records that the jobs' state was built from, and gives their offsets to other records.
            _log.warning("%s[%d]: records are lost; every job goes on from its newest progress event", *partition)
            self._forget()
            self._wake.set()

    def _forget(self) -> None:
        # Whoever holds the partition takes the jobs over, from their newest progress events.
        for task in self._begun.values():
            task.cancel()
        self._begun.clear()
        for files in self._files.values():
            files.close()
        self._files.clear()
        self._core.clear()
        self._effects.clear()
        self._want()

    def _drop(self, batch_id: str) -> None:
        self._core.drop(batch_id)
        if (task := self._begun.pop(batch_id, None)) is not None and task is not asyncio.current_task():
            task.cancel()
        if (files := self._files.pop(batch_id, None)) is not None:
            files.close()
        self._want()

    def _want(self) -> None:
        self._wanted = frozenset(prefix.encode() for prefix in self._core.prefixes)

    def _on_change(self, state: JobState) -> None:
        job, progress = self._core.job(state.batch_id), state.progress
        if job is not None and progress is not None and progress.source != self._source and progress.epoch >= job.epoch:
            _log.warning("%s: %s has taken the job over", state.batch_id, progress.source)
            self._lost[state.batch_id] = progress, steady_us()
            self._drop(state.batch_id)
        elif job is not None and state.finished is not None and state.finished.source != self._source:
            self._drop(state.batch_id)  # the service that had the job before this one has finished it
        self._wake.set()

    def _on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        now = steady_us()
        for record in records:
            self._effects.extend(self._core.read(record, now))
        self._limit.set_in_flight(len(self._effects))
        if self._effects:
            self._wake.set()

    async def _work(self) -> None:
        await self._reader.caught_up.wait()
        for state in self._reader.jobs.of_tenant(None):
            if state.finished is not None:
                self._store.clean(state.batch_id)  # the service that ran the job may have been killed before
        while True:
            if self._on_ready is not None and self.ready:
                on_ready, self._on_ready = self._on_ready, None
                on_ready()
            if self._owner:
                self._look_for_jobs()
                await self._perform_waiting()
                await self._step()
            await self._unfollow_if_idle()
            waits_s = STEP_S if self._begun or self._on_ready is not None else IDLE_S
            try:
                async with asyncio.timeout(waits_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _report(self) -> None:
        while True:
            set_gauges(job_figures(self._reader.jobs.active(), self._core.jobs(), self._reader.now_ms()))
            await asyncio.sleep(REPORT_S)

    def _look_for_jobs(self) -> None:
        now = steady_us()
        for state in self._reader.jobs.active():
            batch_id = state.batch_id
            if batch_id not in self._begun and not self._is_lost(state, now) and self._group.in_session:
                self._begun[batch_id] = self._tasks.create_task(self._begin(state))
            expired = self._reader.now_ms() >= state.expires_ms
            self._effects.extend(self._core.update(state, now, expired))

    def _is_lost(self, state: JobState, now_us: int) -> bool:
        if (lost := self._lost.get(state.batch_id)) is None:
            return False
        progress, since_us = lost
        if progress is not state.progress:
            self._lost[state.batch_id] = state.progress, now_us
        elif now_us - since_us >= LOST_S * 1_000_000:
            del self._lost[state.batch_id]
            return False
        return True

    async def _step(self) -> None:
        positions = self._positions()
        if positions is not None:
            self._effects.extend(self._core.step(steady_us(), positions))
            await self._perform_waiting()

    def _positions(self) -> Positions | None:
        found = {
            topic.name: [self._tail.position(topic, number) for number in range(self._bus.partitions)]
            for topic in (STREAMS, REQUESTS_BATCH)
        }
        if any(position is None for each in found.values() for position in each):
            return None
        return {name: [position or 0 for position in each] for name, each in found.items()}

    async def _begin(self, state: JobState) -> None:
        batch_id, created = state.batch_id, state.created
        refuse = created.bad_lines == "refuse"
        try:
            plan = await self._prepare(batch_id, created.input_file, refuse_bad=refuse)
        except OSError as error:
            await self._post_unreadable(state, error)
            return
        if plan.refused:
            end = BatchFinished(**self._about(state), outcome="failed", faults=plan.refused)
            await self._post_end(state, end)
            return
        await self._reader.read_to_end()  # the service that had the job before may have written more
        newest = self._reader.jobs.get(batch_id)
        if newest is None or newest.finished is not None:
            self._drop(batch_id)
            self._store.clean(batch_id)
            return
        state = newest
        positions = await self._follow(state.progress)
        part = f"part-{(state.progress.epoch if state.progress else 0) + 1}-{self._source.partition('/')[2]}"
        try:
            files = await repeat_in_thread(partial(JobFiles, self._store, batch_id, created.input_file, plan, part))
        except FileNotFoundError as error:  # the plan was stored before, so nothing has opened the input yet
            await self._post_unreadable(state, error)
            return
        self._files[batch_id] = files
        for effect in self._core.begin(state, plan.good, plan.bad, part, positions):
            await self._perform(effect)
        await self._reader.read_to_end()
        newest = self._reader.jobs.get(batch_id)
        if newest is None or newest.progress is None or newest.progress.source != self._source:
            self._drop(batch_id)
            self._lost[batch_id] = None if newest is None else newest.progress, steady_us()
            return
        self._core.confirmed(batch_id)
        self._want()
        self._rewind(newest.progress)  # no await before it: every answer is folded from its first event
        await self._read_to_end()
        self._effects.extend(self._core.caught_up(batch_id, steady_us()))
        self._wake.set()

    async def _prepare(self, batch_id: str, input_file: str, *, refuse_bad: bool) -> JobPlan:
        work = partial(prepare, self._store, batch_id, input_file, refuse_bad=refuse_bad)
        if await repeat_in_thread(partial(is_prepared, self._store, batch_id)):
            return await repeat_in_thread(work)

        async def alone() -> JobPlan:
            async with self._preparing:
                return await asyncio.to_thread(work)

        return await repeat(alone)

    def _rewind(self, progress: BatchProgress) -> None:
        # The records of the job were skipped until ``BatchCore.confirmed`` was called.
        topics = ((STREAMS, progress.stream_offsets), (REQUESTS_BATCH, progress.request_offsets))
        self._tail.rewind({(topic, number): start for topic, starts in topics for number, start in enumerate(starts)})

    async def _follow(self, progress: BatchProgress | None) -> Positions:
        begins: dict[str, list[int]] = {}
        for topic, offsets in (
            (STREAMS, progress.stream_offsets if progress else ()),
            (REQUESTS_BATCH, progress.request_offsets if progress else ()),
        ):
            begins[topic.name] = []
            for number in range(self._bus.partitions):
                start = offsets[number] if number < len(offsets) else await self._tail.end_offset(topic, number)
                followed = await self._tail.follow(topic, number, start)
                begins[topic.name].append(min(start, followed))
        self._following = True
        return begins

    async def _read_to_end(self) -> None:
        partitions = [(topic, number) for topic in (STREAMS, REQUESTS_BATCH) for number in range(self._bus.partitions)]
        await self._tail.read_through({each: await self._tail.end_offset(*each) for each in partitions})

    async def _unfollow_if_idle(self) -> None:
        if self._following and not self._begun:
            self._following = False
            for topic in (STREAMS, REQUESTS_BATCH):
                for number in range(self._bus.partitions):
                    await self._tail.unfollow(topic, number)

    async def _perform_waiting(self) -> None:
        while self._effects:
            await self._perform(self._effects.popleft())
            self._limit.set_in_flight(len(self._effects))

    async def _perform(self, effect: Any) -> None:
        files = self._files.get(effect.batch_id)
        state = self._reader.jobs.get(effect.batch_id)
        if files is None or state is None:
            return  # another service has taken over the job meanwhile
        match effect:
            case SubmitLine():
                if effect.attempt > 1:
                    BATCH_RETRIES.inc()
                await self._submit(state, files, effect)
            case RecordResult():
                await self._persistently(files, effect.batch_id, partial(files.append, effect))
                labelled(BATCH_LINES, "completed" if isinstance(effect.result, LineAnswer) else "failed").inc()
            case AskCancel():
                about: Any = {"tenant": state.created.tenant, "at": now_us(), "source": self._source}
                cancel = Cancel(request_id=effect.request_id, **about, reason="operator")
                await self._producer.post(CONTROL, cancel)
            case JobCheckpoint():
                progress = structs.replace(files.noted(effect.progress), at=now_us())
                await self._persistently(files, effect.batch_id, partial(asyncio.to_thread, files.sync))
                if self._files.get(effect.batch_id) is files:
                    await self._producer.send(BATCHES, progress)
            case FinishJob():
                await self._finish(state, files, effect)

    async def _submit(self, state: JobState, files: JobFiles, effect: SubmitLine) -> None:
        work = partial(
            files.request, effect.place, effect.attempt, tenant=state.created.tenant, at_us=now_us(),
            source=self._source, deadlines=self._settings.deadlines, check=self._settings.output_check,
        )  # fmt: skip
        refused = partial(self._on_refused, effect)
        try:
            if (request := await self._persistently(files, effect.batch_id, work)) is None:
                return
            written = await self._producer.post(REQUESTS_BATCH, request)
        except (MalformedEvent, BadLine) as error:
            refused(str(error))
            return
        written.add_done_callback(lambda ack: _tell_refusal(ack, refused))

    def _on_refused(self, effect: SubmitLine, message: str) -> None:
        self._effects.extend(self._core.not_written(effect.batch_id, effect.place, effect.attempt, message))
        self._wake.set()

    async def _finish(self, state: JobState, files: JobFiles, effect: FinishJob) -> None:
        progress, job = state.progress, self._core.job(effect.batch_id)
        await self._reader.read_to_end()
        newest = self._reader.jobs.get(effect.batch_id)
        if newest is None or job is None or (progress := newest.progress) is None or progress.source != self._source:
            return
        if newest.finished is not None:
            return
        work = partial(
            write_results, self._store, effect.batch_id, state.created.input_file, tenant=state.created.tenant,
            parts=progress.parts, good=files.plan.good, outcome=effect.outcome, now_s=now_ms() // 1_000,
        )  # fmt: skip
        written = await self._persistently(files, effect.batch_id, partial(asyncio.to_thread, work))
        if written is None or self._files.get(effect.batch_id) is not files:
            return  # a service that has taken the job over uses the folder
        totals = structs.replace(job.totals, completed=written.completed, failed=written.failed)
        end = BatchFinished(
            **self._about(state), outcome=effect.outcome, totals=totals, output_file=written.output_file,
            error_file=written.error_file,
        )  # fmt: skip
        await self._post_end(state, end)

    async def _persistently(self, files: JobFiles, batch_id: str, work: Callable[[], Any]) -> Any:
        """Repeat ``work`` until it raises no ``OSError``. Return its result, or None if this service loses the job."""
        attempt = 0
        while self._files.get(batch_id) is files:
            try:
                found = work()
                return await found if asyncio.iscoroutine(found) else found
            except OSError as error:
                await wait_for_retry(attempt, error)
                attempt += 1
        return None

    async def _post_unreadable(self, state: JobState, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        why = "does not exist any more" if missing else f"cannot be read: {error.strerror}"
        fault = LineFault(code="input_file_unreadable", message=f"The input file {why}.")
        await self._post_end(state, BatchFinished(**self._about(state), outcome="failed", faults=(fault,)))

    async def _post_end(self, state: JobState, end: BatchFinished) -> None:
        await self._producer.send(BATCHES, end)
        await self._reader.read_to_end()
        self._drop(state.batch_id)
        self._store.clean(state.batch_id)

    def _about(self, state: JobState) -> Any:
        created = state.created
        return {"batch_id": created.batch_id, "tenant": created.tenant, "at": now_us(), "source": self._source}


def _tell_refusal(ack: "asyncio.Future[Position]", refused: Callable[[str], None]) -> None:
    error = None if ack.cancelled() else ack.exception()
    if isinstance(error, BusError):
        refused(str(error))
