"""A lab for integration tests: a broker, the log as the test reads it, and the services that the test starts."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from schemas.base import AnyEvent, Event
from schemas.topics import STREAMS, TOPICS
from services.bus import BusSettings, Producer, Received, TailReader, UnreadableRecord, ensure_topics
from services.stream import Screen
from tests.support.brokers import Broker
from tests.support.bus import any_role, topic_of
from tests.support.processes import ServiceProcess
from tests.support.waiting import PATIENCE_S, News

L = TypeVar("L", bound="Lab")

UNGOVERNED: Final = {"RAILBUS_INPUT_GATE": "off", "RAILBUS_OUTPUT_CHECK": "off"}
"""Settings without rails and safety, because a lab usually starts one service only."""


class Lab:
    """A broker and one service under test. The test plays the other services by writing their events.

    Attributes:
        service: Module that ``start`` runs by default.
        settings: Environment of every process that the lab starts.
        pause_s: Seconds that ``until`` waits after new records before it checks again, which saves work on a long log.
        log: Every readable record that the test has read, in the order of reading.
        watch: Called with every batch of records that the test reads, including unreadable ones.
    """

    service: ClassVar[str] = ""
    partitions: ClassVar[int] = 2
    settings: ClassVar[Mapping[str, str]] = {}
    pause_s: ClassVar[float] = 0.0

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.bus = BusSettings(bootstrap=broker.address, partitions=self.partitions)
        self.producer = Producer(self.bus, role=any_role(), name="test")
        self.log: list[Received] = []
        self.watch: Callable[[Sequence[Received | UnreadableRecord]], None] = lambda records: None
        self._tail = TailReader(self.bus, handler=self._on_records)
        self._processes: list[ServiceProcess] = []
        self._news = News()

    @classmethod
    @asynccontextmanager
    async def opened(cls, *broker_options: str, keep_log: bool = False) -> AsyncIterator[Self]:
        """Start a broker and yield a lab. End all processes after the ``with`` block.

        With ``keep_log``, the broker keeps its log on disk and can be restarted.
        """
        with tempfile.TemporaryDirectory(prefix="railbus-lab-") as folder:
            broker = Broker("embedded", Path(folder) / "data", options=broker_options, in_memory=not keep_log)
            try:
                broker.launch()
                await asyncio.to_thread(broker.wait_until_ready)
                lab = cls(broker)
                await lab.open()
                try:
                    yield lab
                finally:
                    await lab.close()
            finally:
                if broker.is_running():
                    broker.kill()

    async def open(self) -> None:
        await ensure_topics(self.bus)
        await self.producer.start()
        self._reading = asyncio.create_task(self._tail.run())
        for topic in TOPICS:
            for number in range(topic.partitions(self.partitions)):
                await self._tail.follow(topic, number, "beginning")

    async def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.producer.stop()

    def start(self, module: str = "", *arguments: str, **env: str) -> ServiceProcess:
        """Start a service, and do not wait until it is ready."""
        where = {"RAILBUS_KAFKA_BOOTSTRAP": self.bus.bootstrap, "RAILBUS_PARTITIONS": str(self.partitions)}
        process = ServiceProcess(module or self.service, *arguments, **{**where, **UNGOVERNED, **self.settings, **env})
        self._processes.append(process)
        return process

    async def run(self, **env: str) -> ServiceProcess:
        """Start the service under test, and wait until it is ready."""
        process = self.start(**env)
        await process.ready()
        return process

    async def restart_broker(self, away_s: float) -> None:
        """Stop the broker cleanly, and start it again after ``away_s`` seconds, with the same log and port."""
        assert await asyncio.to_thread(self.broker.stop) == 0
        await asyncio.sleep(away_s)
        self.broker.launch()
        await asyncio.to_thread(self.broker.wait_until_ready)

    async def post(self, *events: AnyEvent) -> None:
        """Write events to their topics, in order, without waiting for the broker."""
        for event in events:
            await self.producer.post(topic_of(event), event)

    async def send(self, *events: AnyEvent) -> None:
        """Write events, and wait until the broker has them."""
        for event in events:
            await self.producer.send(topic_of(event), event)

    def written(self, kind: Any, request_id: str | None = None) -> list[Any]:
        """Return all events read so far that are instances of ``kind``. With ``request_id``, return only its events."""
        events = (record.event for record in self.log)
        return [e for e in events if isinstance(e, kind) and (request_id is None or e.request_id == request_id)]

    def screen(self, request_id: str) -> Screen:
        """Fold the events of a request that were read so far, and return the screen."""
        screen = Screen(request_id)
        for record in self.log:
            if (
                record.topic == STREAMS.name
                and isinstance(record.event, Event)
                and record.event.request_id == request_id
            ):
                screen.feed(record.event)  # type: ignore[arg-type]
        return screen

    async def until(self, condition: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
        """Wait until the condition holds. The test fails if this takes more than ``within_s`` seconds."""
        await self._news.until(condition, within_s=within_s, pause_s=self.pause_s)

    def _on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        self.watch(records)
        self.log += [record for record in records if isinstance(record, Received)]
        self._news.tell()
