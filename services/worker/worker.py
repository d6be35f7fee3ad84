"""Read the events ``Request`` and ``Cancel`` from Kafka, and start and stop executions."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from schemas.requests import Request, received_us
from schemas.side_events import Cancel
from schemas.stream import Failed
from schemas.topics import CONTROL, Topic
from services.bus import (
    Assignment,
    AtTime,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Producer,
    Received,
    TailReader,
    TopicPartitions,
    UnreadableRecord,
    filter_for_role,
)
from services.runtime import metrics
from services.runtime.clock import now_ms, steady_us
from services.runtime.logging import logger
from services.worker.engine import Engine
from services.worker.execution import ExecutionRunner
from services.worker.scheduler import (
    CANCEL_MEMORY_US,
    ENGINE_DIED,
    STOPPING,
    RecordPlace,
    Refusal,
    Scheduler,
    Ticket,
    WorkerConfig,
    most_batch,
)

_log = logger("worker")

SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Maximum time in seconds for executions to end after they are stopped."""

ACKNOWLEDGED_S: Final = 10.0
"""Maximum time in seconds to wait, before leaving the group, until the broker has the first event of every running
execution. It allows for a short outage of the broker. Without the event, another worker would read the request and run
it again."""

LEAVING_S: Final = 15.0
"""Maximum time in seconds for the readers to commit and to leave the group."""

PROBE_S: Final = 1.0
"""Seconds between two requests for the topic's end offsets, which check that the broker answers."""

STALE_S: Final = 10.0
"""If the broker has not answered for this many seconds, the worker is not ready."""


class EngineDied(Exception):
    """The engine is dead, so the process must end."""


class WorkerService:
    """A worker: reads requests, runs them on an engine, and writes the events of the runs.

    The worker commits the offset of a request after the broker has acknowledged the first event of the run.

    Args:
        config: The worker's configuration.
        bus: The broker's settings.
        engine: A started engine.
    """

    def __init__(self, config: WorkerConfig, bus: BusSettings, engine: Engine) -> None:
        self._bus = bus
        self._config = config
        self._producer = Producer(bus, role=config.name)
        source = f"{config.name}/{secrets.token_hex(3)}"
        self._runner = ExecutionRunner(engine, self._producer, config, source, self._on_taken)
        slots = min(config.slots or engine.capacity, engine.capacity)
        self._scheduler = Scheduler(
            slots=slots, batch_slots=config.batch_slots, preempts=engine.preempts,
            output_check=config.output_check, resolve=engine.resolve,
        )  # fmt: skip
        # A request counts against the limit until it runs or its refusal is written. Of the batch lane, only as many
        # requests are accepted as could run. The others stay on the log, where another process can read them.
        self._in_flight = InFlightLimit(config.queue)
        self._batch_in_flight = InFlightLimit(min(most_batch(slots, config.batch_slots), config.queue))
        self._reader = self._group_reader(config.topic, batch=False)
        self._batch_reader = None if config.batch is None else self._group_reader(config.batch, batch=True)
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._joined = asyncio.Event()
        self._died = asyncio.Event()
        self._closing = False
        self._answered_s = -STALE_S  # when the broker last answered, by the monotonic clock
        metrics.GENERATING.set_function(lambda: self._scheduler.running)
        metrics.GENERATOR_WAITING.set_function(lambda: self._scheduler.waiting)

    @property
    def ready(self) -> bool:
        """Whether this worker can process requests."""
        fresh = time.monotonic() - self._answered_s < STALE_S
        return self._reader.joined and fresh and not self._closing and not self._died.is_set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Process requests until cancelled. Call ``ready`` when the worker has joined the consumer group.

        After cancellation, runs may finish within ``drain_s``. A run that does not finish ends with a ``Failed`` event.

        Raises:
            EngineDied: The engine died. The error is inside an exception group.
            UserError: The broker refuses what this worker writes. The error is inside an exception group.
        """
        await self._producer.start()
        control = TailReader(
            self._bus, handler=self._on_control, record_filter=filter_for_role(self._config.name, CONTROL)
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(control.run())
                since = AtTime(now_ms() - CANCEL_MEMORY_US // 1_000)
                for partition in range(self._bus.partitions):
                    await control.follow(CONTROL, partition, since)
                both = (self._reader, self._batch_reader)
                readers = [tasks.create_task(reader.run()) for reader in both if reader is not None]
                probing = tasks.create_task(self._probe())
                writing = tasks.create_task(self._producer.watch())
                try:
                    await self._joined.wait()
                    self._pump()
                    ready()
                    await self._until_dead()
                except asyncio.CancelledError:
                    if not any(task.done() for task in (listening, probing, writing, *readers)):  # else one has failed
                        await self._drain(readers)
                    raise
                finally:
                    self._begin_end()
        finally:
            await self._end()

    def _group_reader(self, topic: Topic, *, batch: bool) -> GroupReader:
        def handle(records: Sequence[Received | UnreadableRecord]) -> None:
            self._on_requests(reader, records, batch=batch)

        reader = GroupReader(
            self._bus, topics=[topic], group=f"{self._config.name}-batch" if batch else self._config.name,
            handler=handle, record_filter=filter_for_role(self._config.name, topic),
            in_flight_limit=self._batch_in_flight if batch else self._in_flight,
            on_assigned=self._on_assigned, commit="manual", settle=self._settle, instance_id=self._config.instance,
        )  # fmt: skip
        return reader

    def _on_assigned(self, assignment: Assignment) -> None:
        # The next owner of a lost partition reads its waiting requests again.
        lost = assignment.lost
        self._hand_back(lambda ticket: ticket.place is not None and ticket.place[:2] in lost)
        self._pump()

    async def _settle(self, partitions: TopicPartitions | None = None) -> None:
        # Wait until the broker has the first event of every request that was started or refused.
        unacknowledged = self._scheduler.unacknowledged
        while any(partitions is None or (t.place or ())[:2] in partitions for t in unacknowledged):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # a few times only

    async def _probe(self) -> None:
        while True:
            await self._reader.lag()
            self._answered_s = time.monotonic()
            if self._reader.joined:
                self._joined.set()
            self._pump()
            await asyncio.sleep(PROBE_S if self._joined.is_set() else 0.02)

    def _on_requests(self, reader: GroupReader, records: Sequence[Received | UnreadableRecord], *, batch: bool) -> None:
        if self._closing:
            return  # not committed, so another worker reads them
        now = steady_us()
        for record in records:
            place = RecordPlace(record.topic, record.partition, record.offset)
            if isinstance(record, Received) and isinstance(record.event, Request):
                clock = reader.log_clock((record.topic, record.partition))
                received = received_us(record.event, clock.appended_us(record.timestamp_ms, now))
                self._accept(record.event, record.traceparent, place, received, batch=batch)
            else:
                reader.done(*place)
        self._pump()

    def _accept(
        self, request: Request, traceparent: str | None, place: RecordPlace, received: int, *, batch: bool
    ) -> None:
        now = steady_us()
        ticket = Ticket(request, secrets.token_hex(8), traceparent, batch, now, received, place=place)
        answer = self._scheduler.accept(ticket, now)
        if answer in {"known", "unacknowledged"}:
            _log.info("request %s attempt %d was read again; ignored", request.request_id, request.attempt)
            if answer == "known":
                self._reader_of(batch=batch).done(*place)
            return
        self._in_flight_of(ticket).acquire()
        if isinstance(answer, Refusal):
            self._refuse(ticket, answer)

    def _on_control(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Cancel):
                dropped, stopped = self._scheduler.cancel(record.event, steady_us())
                self._stop(dropped, stopped)
                metrics.ABORTED.inc(len(stopped))
        self._pump()

    def _pump(self) -> None:
        if not self._scheduler.waiting:
            return
        # No request is started while the group has not confirmed this worker's membership (``in_session``), because
        # another worker may own its partition then. ``_probe`` calls this method again later.
        batch = self._batch_reader is not None and self._batch_reader.in_session
        while self._may_begin and (picked := self._scheduler.next(steady_us(), batch=batch)) is not None:
            ticket, refusal = picked
            if refusal is not None:
                self._refuse(ticket, refusal)
            else:
                self._in_flight_of(ticket).release()
                self._tasks[ticket] = asyncio.create_task(self._execute(ticket))

    @property
    def _may_begin(self) -> bool:
        return not self._closing and self._reader.in_session

    async def _execute(self, ticket: Ticket) -> None:
        end = await self._runner.run(ticket)
        if isinstance(end, Failed) and end.error_class == "engine_dead" and not self._closing:
            self._died.set()
        del self._tasks[ticket]
        self._scheduler.release(ticket)
        self._pump()

    def _stop(self, dropped: list[Ticket], stopped: list[Ticket]) -> None:
        for ticket in dropped:
            if ticket.stopped is not None:
                self._refuse(ticket, ticket.stopped)
        for ticket in stopped:
            # An execution that has not begun checks ``ticket.stopped`` when it begins.
            if ticket.begun:
                self._tasks[ticket].cancel()

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        async def refuse() -> None:
            await self._runner.refuse(ticket, refusal)
            self._in_flight_of(ticket).release()

        task = asyncio.create_task(refuse())
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def _hand_back(self, other: Callable[[Ticket], bool]) -> None:
        for ticket in self._scheduler.hand_back(other):
            self._in_flight_of(ticket).release()

    def _on_taken(self, ticket: Ticket) -> None:
        # If the process is killed between this moment and the commit (at most 0.1 seconds later), the request is read
        # again although it has started.
        for place in self._scheduler.acknowledged(ticket):
            self._reader_of(batch=ticket.batch).done(*place)

    def _reader_of(self, *, batch: bool) -> GroupReader:
        return self._batch_reader if batch and self._batch_reader is not None else self._reader

    def _in_flight_of(self, ticket: Ticket) -> InFlightLimit:
        return self._batch_in_flight if ticket.batch else self._in_flight

    async def _until_dead(self) -> None:
        await self._died.wait()
        raise EngineDied("the engine died; see the log")

    async def _drain(self, readers: Sequence[asyncio.Task[None]]) -> None:
        self._closing = True
        self._hand_back(lambda _: True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACKNOWLEDGED_S):  # running requests must not be handed back
                await self._settle()
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers, timeout=LEAVING_S)
        if self._tasks:
            _log.info("%d answer(s) may finish within %.0f s", len(self._tasks), self._config.drain_s)
            await asyncio.wait(list(self._tasks.values()), timeout=self._config.drain_s)

    def _begin_end(self) -> None:
        self._closing = True
        self._hand_back(lambda _: True)
        self._stop([], self._scheduler.stop_all(ENGINE_DIED if self._died.is_set() else STOPPING))

    async def _end(self) -> None:
        self._begin_end()  # again, for an execution that could not be stopped before
        still_open = [*self._tasks.values(), *self._refusals]
        if still_open:
            await asyncio.wait(still_open, timeout=SHUTDOWN_TIMEOUT_S)
        await self._producer.stop()
