"""The shell around the desk: reads requests and cancels, starts and stops executions."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from schemas.books import Cancel
from schemas.requests import Request
from schemas.stream import Failed
from schemas.topics import CONTROL, Topic
from services.bus import (
    Assignment,
    AtTime,
    BusSettings,
    GroupReader,
    Producer,
    Received,
    Room,
    TailReader,
    Unread,
    wants_of,
)
from services.runtime import metrics
from services.runtime.clock import now_ms, now_us
from services.runtime.logging import logger
from services.worker.desk import CANCEL_MEMORY_US, ENGINE_DIED, STOPPING, Desk, Refusal, Ticket
from services.worker.engine import Engine
from services.worker.execution import Executions
from services.worker.role import Role

_log = logger("worker")

END_S: Final = 5.0
"""Longest time executions may take to end once they were told to."""


class EngineDied(Exception):
    """The engine is dead; so is this process, and its supervisor starts another."""


class Worker:
    """One worker process.

    Args:
        role: Which worker it is, and how it runs.
        bus: Where the broker is.
        engine: Started already.
    """

    def __init__(self, role: Role, bus: BusSettings, engine: Engine) -> None:
        self._bus = bus
        self._role = role
        self._producer = Producer(bus, role=role.name)
        self._executions = Executions(engine, self._producer, role, f"{role.name}/{secrets.token_hex(3)}")
        slots = min(role.slots or engine.capacity, engine.capacity)
        self._desk = Desk(slots=slots, output_check=role.output_check, resolve=engine.resolve)
        # A request takes a place until it runs or its refusal is on the way to the log. Of the batch only as many are
        # taken up as could run: the rest waits on the log, where another process may find it.
        self._room = Room(role.queue)
        self._batch_room = Room(min(slots, role.queue))
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._joined = asyncio.Event()
        self._died = asyncio.Event()
        self._closing = False

    async def run(self, ready: Callable[[], None]) -> None:
        """Works until cancelled; says ``ready`` once the group was joined.

        Raises:
            EngineDied: The engine cannot go on (inside an exception group).
        """
        await self._producer.start()
        control = TailReader(self._bus, handler=self._on_control, wants=wants_of(self._role.name, CONTROL))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(control.run())
                since = AtTime(now_ms() - CANCEL_MEMORY_US // 1_000)
                for partition in range(self._bus.partitions):
                    await control.follow(CONTROL, partition, since)
                tasks.create_task(self._interactive_reader().run())
                if self._role.batch is not None:
                    tasks.create_task(self._batch_reader(self._role.batch).run())
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
        def handle(records: Sequence[Received | Unread]) -> None:
            self._on_requests(records, batch=False)

        def joined(_: Assignment) -> None:
            self._joined.set()

        return GroupReader(
            self._bus, topics=[self._role.topic], group=self._role.name, handler=handle,
            wants=wants_of(self._role.name, self._role.topic), room=self._room, on_assigned=joined,
            instance_id=self._role.instance,
        )  # fmt: skip

    def _batch_reader(self, topic: Topic) -> GroupReader:
        def handle(records: Sequence[Received | Unread]) -> None:
            self._on_requests(records, batch=True)

        return GroupReader(
            self._bus, topics=[topic], group=f"{self._role.name}-batch", handler=handle,
            wants=wants_of(self._role.name, topic), room=self._batch_room, instance_id=self._role.instance,
        )  # fmt: skip

    def _on_requests(self, records: Sequence[Received | Unread], *, batch: bool) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Request):
                self._accept(record.event, record.traceparent, batch=batch)
        self._pump()

    def _accept(self, request: Request, traceparent: str | None, *, batch: bool) -> None:
        now = now_us()
        ticket = Ticket(request, secrets.token_hex(8), traceparent, batch, now)
        answer = self._desk.accept(ticket, now)
        if answer == "known":
            _log.info("request %s attempt %d was read again; ignored", request.request_id, request.attempt)
            return
        self._room_of(ticket).take()
        if isinstance(answer, Refusal):
            self._refuse(ticket, answer)

    def _on_control(self, records: Sequence[Received | Unread]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Cancel):
                dropped, stopped = self._desk.cancel(record.event, now_us())
                self._stop(dropped, stopped)
                metrics.ABORTED.inc(len(stopped))
        self._pump()

    def _pump(self) -> None:
        """Starts whatever may start now."""
        while not self._closing and (picked := self._desk.pick(now_us())) is not None:
            ticket, refusal = picked
            if refusal is not None:
                self._refuse(ticket, refusal)
            else:
                self._room_of(ticket).give()
                self._tasks[ticket] = asyncio.create_task(self._execute(ticket))
        metrics.GENERATING.set(self._desk.running)
        metrics.GENERATOR_WAITING.set(self._desk.waiting)

    async def _execute(self, ticket: Ticket) -> None:
        end = await self._executions.run(ticket)
        if isinstance(end, Failed) and end.error_class == "engine_dead":
            self._died.set()
        del self._tasks[ticket]
        self._desk.ended(ticket)
        self._pump()

    def _stop(self, dropped: list[Ticket], stopped: list[Ticket]) -> None:
        """Tells executions to stop; each ticket knows why. One that has not begun sees it when it does."""
        for ticket in dropped:
            if ticket.stopped is not None:
                self._refuse(ticket, ticket.stopped)
        for ticket in stopped:
            if ticket.begun:
                self._tasks[ticket].cancel()

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        async def refuse() -> None:
            await self._executions.refuse(ticket, refusal)
            self._room_of(ticket).give()

        task = asyncio.create_task(refuse())
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def _room_of(self, ticket: Ticket) -> Room:
        return self._batch_room if ticket.batch else self._room

    async def _until_dead(self) -> None:
        await self._died.wait()
        raise EngineDied("the engine died; see the log")

    def _begin_end(self) -> None:
        """Nothing starts any more; everything open is told to end."""
        self._closing = True
        self._stop(*self._desk.clear(ENGINE_DIED if self._died.is_set() else STOPPING))

    async def _end(self) -> None:
        """Waits until the log has the last word of everything that was open."""
        self._begin_end()  # again: the readers may have brought more while they ended
        still_open = [*self._tasks.values(), *self._refusals]
        if still_open:
            await asyncio.wait(still_open, timeout=END_S)
        await self._producer.stop()
