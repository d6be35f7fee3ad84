"""The router's I/O: reads, keeps the time, writes. Every decision is the core's."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from schemas.books import Account, Cancel, DeadLetter
from schemas.errors import MalformedEvent
from schemas.stream import Cutover
from schemas.topics import DEAD
from services.bus import (
    AtTime,
    BusError,
    GroupReader,
    Position,
    Producer,
    Received,
    Room,
    TailReader,
    TopicPartitions,
    Unread,
)
from services.router.core import READ, Router
from services.router.effects import Write
from services.router.settings import Settings
from services.router.shard import Writes
from services.runtime.clock import now_ms, now_us
from services.runtime.logging import logger
from services.runtime.metrics import CANCELS, CLOSED, CUTOVERS, DEAD_LETTERS, ROUTER_OPEN

_log = logger("router")

GROUP: Final = "router"

OUTBOX: Final = 10_000
"""Decisions on their way to the producer; while there are more, nothing is read and nothing new is decided."""

FULL_S: Final = 0.1
"""How soon the clock looks again when they are too many."""

SLOWEST_TICK_US: Final = 1_000_000
"""The clock looks at least this often, so that a step of the wall clock delays nothing for longer."""


class Shell:
    """One router process.

    Args:
        settings: See ``Settings``.
        source: The router's own name, in all it writes.
        on_ready: Called once, when all partitions it was given first are decided about.
    """

    def __init__(self, settings: Settings, source: str, on_ready: Callable[[], None]) -> None:
        self._settings = settings
        self._on_ready: Callable[[], None] | None = on_ready
        self._core = Router(settings.policy(), source, settings.bus.partitions)
        self._producer = Producer(settings.bus, role="router", name=source)
        self._room = Room(OUTBOX)
        self._outbox: deque[Write] = deque()
        self._outbox_filled = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_us: int | None = None
        self._held = False
        self._graves_read = asyncio.Event()
        self._graves_end = 0
        self._group = GroupReader(
            settings.bus,
            topics=READ,
            group=GROUP,
            handler=self._on_records,
            newer=True,
            room=self._room,
            on_assigned=self._on_assigned,
            on_caught_up=self._on_caught_up,
            commit="never",
            rewind_ms=settings.policy().window_us // 1_000,
            instance_id=settings.router_instance,
        )
        self._graves = TailReader(settings.bus, handler=self._on_graves)

    def ready(self) -> bool:
        """Whether partitions are held and all of them are decided about."""
        return self._held and self._core.deciding

    async def run(self) -> None:
        """Routes until cancelled.

        Raises:
            UserError: The broker refuses the credentials.
        """
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._graves.run(), name="router-graves")
                tasks.create_task(self._send(), name="router-sender")
                await self._read_graves()
                tasks.create_task(self._group.run(), name="router-reader")
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            await self._producer.stop()

    async def _read_graves(self) -> None:
        """Which records have dead letters already, so that folding the log again writes none twice."""
        begin_ms = now_ms() - self._settings.policy().window_us // 1_000
        self._graves_end = await self._graves.end_offset(DEAD, 0)
        if await self._graves.follow(DEAD, 0, AtTime(begin_ms)) < self._graves_end:
            await self._graves_read.wait()

    def _on_graves(self, records: Sequence[Received | Unread]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, DeadLetter):
                self._core.buried(record.event)
        if records[-1].offset + 1 >= self._graves_end:
            self._graves_read.set()

    def _on_assigned(self, held: TopicPartitions) -> None:
        self._core.assign(held)
        self._held = True
        _log.info("holding %d partition(s)", len({partition for _, partition in held}))
        self._tell_ready()

    def _on_caught_up(self, held: TopicPartitions) -> None:
        self._write(self._core.caught_up(held, now_us()))
        self._set_alarm()
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self._on_ready is not None and self.ready():
            self._on_ready()
            self._on_ready = None

    def _on_records(self, records: Sequence[Received | Unread]) -> None:
        read, write, now = self._core.read, self._write, now_us()
        for record in records:
            if writes := read(record, now):
                write(writes)
        self._set_alarm()
        ROUTER_OPEN.set(self._core.open)

    def _on_alarm(self) -> None:
        self._alarm = self._alarm_us = None
        if self._room.free > 0:
            self._write(self._core.tick(now_us()))
            self._set_alarm()
        else:  # the broker is away: what is due stays due
            self._alarm = asyncio.get_running_loop().call_later(FULL_S, self._on_alarm)

    def _set_alarm(self) -> None:
        at_us = self._core.next_alarm_us
        if at_us == self._alarm_us and self._alarm is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_us = at_us
        if at_us is not None:
            wait_us = min(max(at_us - now_us(), 0), SLOWEST_TICK_US)
            self._alarm = asyncio.get_running_loop().call_later(wait_us / 1e6, self._on_alarm)

    def _write(self, writes: Writes) -> None:
        if writes:
            self._room.take(len(writes))
            self._outbox.extend(writes)
            self._outbox_filled.set()

    async def _send(self) -> None:
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            while self._outbox:
                await self._post(self._outbox.popleft())
                self._room.give()

    async def _post(self, write: Write) -> None:
        try:
            ack = await self._producer.post(write.topic, write.event, traceparent=write.traceparent)
        except MalformedEvent as error:  # a prompt at the size limit can be over it when it is published again
            _log.error("a decision cannot be written: %s", error)
            return
        ack.add_done_callback(_look_at)
        _count(write)


def _look_at(ack: asyncio.Future[Position]) -> None:
    """What was not written is decided again after a while; the log must tell why it took so long."""
    error = None if ack.cancelled() else ack.exception()
    if isinstance(error, BusError):
        _log.warning("a decision was not written: %s", error)


def _count(write: Write) -> None:
    match write.event:
        case Cancel():
            CANCELS.labels(write.event.reason).inc()
        case Cutover():
            CUTOVERS.labels(write.event.trigger).inc()
        case Account():
            CLOSED.labels(write.event.outcome).inc()
        case DeadLetter():
            DEAD_LETTERS.inc()
        case _:
            pass
