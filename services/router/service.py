"""The router process: a ``RouterCore`` and the ``Processor`` that reads and writes for it.

At start, the process reads the existing dead letters, so that no record gets a second dead letter.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from schemas.side_events import Account, Cancel, DeadLetter
from schemas.stream import Closed, Cutover
from schemas.topics import ACCOUNTS, DEAD
from services.bus import AtTime, Producer, Received, TailReader, UnreadableRecord
from services.processor import Processor, ProcessorConfig, Write
from services.router.core import LETTERS_MS, READ_TOPICS, RouterCore
from services.router.settings import Settings
from services.runtime.classes.class_reloader import ClassReloader
from services.runtime.classes.service_classes import ServiceClasses
from services.runtime.clock import now_ms, steady_us
from services.runtime.metrics import (
    BREAKER_OPEN,
    CANCELS,
    CLOSED_CAUSES,
    CUTOVERS,
    DEAD_LETTERS,
    FALLBACK_USED,
    REQUESTS_CLOSED,
    ROUTER_OPEN,
    labelled,
)

GROUP: Final = "router"

DEAD_LETTERS_S: Final = 0.02
"""Interval in seconds at which a starting router checks whether it has read all dead letters."""

OUTBOX: Final = 10_000
"""Maximum number of decisions that wait for the producer. While more wait, the router neither reads nor decides."""


class RouterService:
    """One router process.

    Args:
        source: The router's name in the events that it writes.
        on_ready: Called once, when the router has caught up with the log.
        clock: Returns the time in microseconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        source: str,
        on_ready: Callable[[], None],
        *,
        clock: Callable[[], int] = steady_us,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._classes = ClassReloader(settings.policy, GROUP, self._use)
        config = settings.config(self._classes.current)
        self._total_max_ms = config.total_max_ms
        self._core = RouterCore(config, source, settings.bus.partitions)
        self._dead_letters = TailReader(settings.bus, handler=self._on_dead_letters, include_newer=True)
        reading = ProcessorConfig(
            group=GROUP,
            topics=READ_TOPICS,
            rewind_ms=config.window_us // 1_000,
            progress_topic=ACCOUNTS,
            include_newer=True,
            instance_id=settings.router_instance,
            limit=OUTBOX,
            clock=clock,
        )
        producer = Producer(settings.bus, role="router", name=source)
        self._processor = Processor(
            settings.bus, reading, self._core, producer, on_written=self._count, on_ready=on_ready
        )
        ROUTER_OPEN.set_function(lambda: self._core.open)
        BREAKER_OPEN.set_function(lambda: self._core.breaker_open)
        FALLBACK_USED.set_function(lambda: self._core.fallback_used(clock()))

    @property
    def ready(self) -> bool:
        return self._processor.ready

    async def run(self) -> None:
        """Route until cancelled.

        Raises:
            UserError: The broker refuses the credentials.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dead_letters.run(), name="router-dead-letters")
            await self._read_dead_letters()  # so that no record gets a second one when the log is read again
            tasks.create_task(self._processor.run(), name="router-processor")
            tasks.create_task(self._classes.watch(), name="router-classes")

    def _use(self, classes: ServiceClasses) -> None:
        # How far back the router reads at start does not change with the classes.
        self._core.reconfigure(replace(self._settings.config(classes), total_max_ms=self._total_max_ms))

    async def _read_dead_letters(self) -> None:
        begin = AtTime(now_ms() - LETTERS_MS)
        end = await self._dead_letters.end_offset(DEAD, 0)
        await self._dead_letters.follow(DEAD, 0, begin)
        # Compare positions instead of counting records, because perhaps the topic's last record is not handed over.
        while (self._dead_letters.position(DEAD, 0) or 0) < end:  # noqa: ASYNC110 - at start only
            await asyncio.sleep(DEAD_LETTERS_S)

    def _on_dead_letters(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, DeadLetter):
                writes = self._core.on_dead_letter(record.event, record.timestamp_ms, self._clock())
                if writes:
                    self._processor.perform_all(writes)

    def _count(self, write: Write) -> None:
        match write.event:
            case Cancel():
                labelled(CANCELS, write.event.reason).inc()
            case Closed() if write.event.cause is not None:
                labelled(CLOSED_CAUSES, write.event.cause).inc()
            case Cutover():
                labelled(CUTOVERS, write.event.trigger).inc()
            case Account():
                labelled(REQUESTS_CLOSED, write.event.lane, write.event.outcome).inc()
            case DeadLetter():
                DEAD_LETTERS.inc()
            case _:
                pass
