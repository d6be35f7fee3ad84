"""The router process: settings, dead letters and the processor wired together. Every decision is the core's."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from schemas.books import Account, Cancel, DeadLetter
from schemas.stream import Cutover
from schemas.topics import DEAD
from services.bus import AtTime, Producer, Received, TailReader, Unread
from services.processor import Processor, Reading, Write
from services.router.core import READ, Router
from services.router.settings import Settings
from services.runtime.clock import now_ms
from services.runtime.metrics import CANCELS, CLOSED, CUTOVERS, DEAD_LETTERS, ROUTER_OPEN

GROUP: Final = "router"

OUTBOX: Final = 10_000
"""Decisions on their way to the producer; while there are more, nothing is read and nothing new is decided."""


class RouterService:
    """One router process.

    Args:
        settings: See ``Settings``.
        source: The router's own name, in all it writes.
        on_ready: Called once, when everything that it holds is decided about.
    """

    def __init__(self, settings: Settings, source: str, on_ready: Callable[[], None]) -> None:
        policy = settings.policy()
        self._window_ms = policy.window_us // 1_000
        self._core = Router(policy, source, settings.bus.partitions)
        self._dead_letters_end = 0
        self._dead_letters_read = asyncio.Event()
        self._dead_letters = TailReader(settings.bus, handler=self._on_dead_letters, newer=True)
        reading = Reading(
            group=GROUP,
            topics=READ,
            rewind_ms=self._window_ms,
            newer=True,
            instance_id=settings.router_instance,
            limit=OUTBOX,
        )
        producer = Producer(settings.bus, role="router", name=source)
        self._processor = Processor(settings.bus, reading, self._core, producer, written=self._count, on_ready=on_ready)

    @property
    def ready(self) -> bool:
        """Whether everything that it holds is decided about."""
        return self._processor.ready

    async def run(self) -> None:
        """Route until cancelled.

        Raises:
            UserError: The broker refuses the credentials.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dead_letters.run(), name="router-dead-letters")
            await self._read_dead_letters()
            tasks.create_task(self._processor.run(), name="router-processor")

    async def _read_dead_letters(self) -> None:
        """Learn which records have dead letters, so that folding the log again writes none twice."""
        begin = AtTime(now_ms() - self._window_ms)
        self._dead_letters_end = await self._dead_letters.end_offset(DEAD, 0)
        if await self._dead_letters.follow(DEAD, 0, begin) < self._dead_letters_end:
            await self._dead_letters_read.wait()

    def _on_dead_letters(self, records: Sequence[Received | Unread]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, DeadLetter):
                self._core.on_dead_letter(record.event)
        if records[-1].offset + 1 >= self._dead_letters_end:
            self._dead_letters_read.set()

    def _count(self, write: Write) -> None:
        ROUTER_OPEN.set(self._core.open)
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
