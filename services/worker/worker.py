"""Read requests and cancels from the bus; start and stop executions as the scheduler decides."""

import asyncio
import secrets
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
    Refusal,
    Scheduler,
    Ticket,
    WorkerConfig,
)

_log = logger("worker")

SHUTDOWN_TIMEOUT_S: Final = 5.0
"""How long executions may take to end once they are stopped."""


class EngineDied(Exception):
    """The engine is dead; the process ends, and its supervisor starts another."""


class Worker:
    """One worker process.

    Args:
        config: The worker's configuration.
        bus: The broker's settings.
        engine: A started engine.
    """

    def __init__(self, config: WorkerConfig, bus: BusSettings, engine: Engine) -> None:
        self._bus = bus
        self._config = config
        self._producer = Producer(bus, role=config.name)
        self._runner = ExecutionRunner(engine, self._producer, config, f"{config.name}/{secrets.token_hex(3)}")
        slots = min(config.slots or engine.capacity, engine.capacity)
        self._scheduler = Scheduler(slots=slots, output_check=config.output_check, resolve=engine.resolve)
        # A request counts against the limit until it runs or its refusal is written. Of the batch lane only as many
        # requests are accepted as could run: the rest stays on the log, where another process can read it.
        self._in_flight = InFlightLimit(config.queue)
        self._batch_in_flight = InFlightLimit(min(slots, config.queue))
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._joined = asyncio.Event()
        self._died = asyncio.Event()
        self._closing = False

    async def run(self, ready: Callable[[], None]) -> None:
        """Process requests until cancelled; call ``ready`` once the consumer group is joined.

        Raises:
            EngineDied: The engine died (inside an exception group).
        """
        await self._producer.start()
        control = TailReader(
            self._bus, handler=self._on_control, record_filter=filter_for_role(self._config.name, CONTROL)
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(control.run())
                since = AtTime(now_ms() - CANCEL_MEMORY_US // 1_000)
                for partition in range(self._bus.partitions):
                    await control.follow(CONTROL, partition, since)
                tasks.create_task(self._interactive_reader().run())
                if self._config.batch is not None:
                    tasks.create_task(self._batch_reader(self._config.batch).run())
                try:
                    await self._joined.wait()
                    self._pump()
                    ready()
                    await self._until_dead()
                finally:
                    self._begin_end()
        finally:
            await self._end()

    def _interactive_reader(self) -> GroupReader:
        def handle(records: Sequence[Received | UnreadableRecord]) -> None:
            self._on_requests(reader, records, batch=False)

        def joined(_: Assignment) -> None:
            self._joined.set()

        reader = GroupReader(
            self._bus, topics=[self._config.topic], group=self._config.name, handler=handle,
            record_filter=filter_for_role(self._config.name, self._config.topic), in_flight_limit=self._in_flight,
            on_assigned=joined, instance_id=self._config.instance,
        )  # fmt: skip
        return reader

    def _batch_reader(self, topic: Topic) -> GroupReader:
        def handle(records: Sequence[Received | UnreadableRecord]) -> None:
            self._on_requests(reader, records, batch=True)

        reader = GroupReader(
            self._bus, topics=[topic], group=f"{self._config.name}-batch", handler=handle,
            record_filter=filter_for_role(self._config.name, topic), in_flight_limit=self._batch_in_flight,
            instance_id=self._config.instance,
        )  # fmt: skip
        return reader

    def _on_requests(self, reader: GroupReader, records: Sequence[Received | UnreadableRecord], *, batch: bool) -> None:
        now = steady_us()
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Request):
                clock = reader.log_clock((record.topic, record.partition))
                received = received_us(record.event, clock.appended_us(record.timestamp_ms, now))
                self._accept(record.event, record.traceparent, received, batch=batch)
        self._pump()

    def _accept(self, request: Request, traceparent: str | None, received: int, *, batch: bool) -> None:
        now = steady_us()
        ticket = Ticket(request, secrets.token_hex(8), traceparent, batch, now, received)
        answer = self._scheduler.accept(ticket, now)
        if answer == "known":
            _log.info("request %s attempt %d was read again; ignored", request.request_id, request.attempt)
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
        """Start every request that may start now."""
        while not self._closing and (picked := self._scheduler.next(steady_us())) is not None:
            ticket, refusal = picked
            if refusal is not None:
                self._refuse(ticket, refusal)
            else:
                self._in_flight_of(ticket).release()
                self._tasks[ticket] = asyncio.create_task(self._execute(ticket))
        metrics.GENERATING.set(self._scheduler.running)
        metrics.GENERATOR_WAITING.set(self._scheduler.waiting)

    async def _execute(self, ticket: Ticket) -> None:
        end = await self._runner.run(ticket)
        if isinstance(end, Failed) and end.error_class == "engine_dead":
            self._died.set()
        del self._tasks[ticket]
        self._scheduler.release(ticket)
        self._pump()

    def _stop(self, dropped: list[Ticket], stopped: list[Ticket]) -> None:
        """Refuse the dropped requests and cancel the stopped executions.

        An execution that has not begun finds ``ticket.stopped`` set when it begins.
        """
        for ticket in dropped:
            if ticket.stopped is not None:
                self._refuse(ticket, ticket.stopped)
        for ticket in stopped:
            if ticket.begun:
                self._tasks[ticket].cancel()

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        async def refuse() -> None:
            await self._runner.refuse(ticket, refusal)
            self._in_flight_of(ticket).release()

        task = asyncio.create_task(refuse())
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def _in_flight_of(self, ticket: Ticket) -> InFlightLimit:
        return self._batch_in_flight if ticket.batch else self._in_flight

    async def _until_dead(self) -> None:
        await self._died.wait()
        raise EngineDied("the engine died; see the log")

    def _begin_end(self) -> None:
        """Start nothing new, and stop everything that is open."""
        self._closing = True
        self._stop(*self._scheduler.stop_all(ENGINE_DIED if self._died.is_set() else STOPPING))

    async def _end(self) -> None:
        """Wait until the last event of every open request is written."""
        self._begin_end()  # again: the readers may have accepted more while they stopped
        still_open = [*self._tasks.values(), *self._refusals]
        if still_open:
            await asyncio.wait(still_open, timeout=SHUTDOWN_TIMEOUT_S)
        await self._producer.stop()
