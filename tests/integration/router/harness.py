"""Real processes: the embedded broker and routers; and the workers, apps and edges that the test plays itself."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from schemas.base import AnyEvent, Event
from schemas.topics import STREAMS, TOPICS
from services.bus import BusSettings, Producer, Received, TailReader, Unread, ensure_topics
from services.stream import Screen
from tests.support.bus import any_role, topic_of

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 20.0
PARTITIONS = 2


class Process:
    """A service's process; it is killed when the test ends."""

    def __init__(self, *command: str, **env: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=os.environ | env,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def ready(self) -> str:
        """Its ready line."""
        assert self._popen.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self._popen.stdout.readline), PATIENCE_S)
        assert line.startswith("ready "), f"process ended with {self._popen.poll()}"
        return line.removeprefix("ready ").strip()

    def kill(self) -> None:
        """kill -9."""
        self._popen.kill()
        self.wait()

    def stop(self) -> int:
        """As an operator stops it; its exit status."""
        self._popen.send_signal(signal.SIGTERM)
        return self.wait()

    def cpu_s(self) -> float:
        """CPU seconds it has used so far."""
        times = psutil.Process(self._popen.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        status = self._popen.wait(PATIENCE_S)
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        return status


class Lab:
    """The log as the test reads it, and the routers it started."""

    def __init__(self, bus: BusSettings, broker: "Broker") -> None:
        self.bus = bus
        self._broker = broker
        self.producer = Producer(bus, role=any_role(), name="test")
        self.log: list[Received] = []
        self._tail = TailReader(bus, handler=self._on_records)
        self._processes: list[Process] = []
        self._news = asyncio.Event()
        self.watch: Callable[[Sequence[Received | Unread]], None] = lambda records: None

    async def open(self) -> None:
        await ensure_topics(self.bus)
        await self.producer.start()
        self._reading = asyncio.create_task(self._tail.run())
        for topic in TOPICS:
            for number in range(topic.partitions(PARTITIONS)):
                await self._tail.follow(topic, number, "beginning")

    async def close(self) -> None:
        for process in self._processes:
            if process.running:
                process.kill()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.producer.stop()

    async def broker_away(self, seconds: float) -> None:
        """The broker is stopped, and another one takes up its log and its port after a while."""
        await self._broker.away(seconds)

    def start(self, service: str, *arguments: str, **env: str) -> Process:
        """A service's process, whose ready line nobody has read yet."""
        where = {"RAILBUS_KAFKA_BOOTSTRAP": self.bus.bootstrap, "RAILBUS_PARTITIONS": str(PARTITIONS)}
        self._processes.append(Process(service, *arguments, **(where | env)))
        return self._processes[-1]

    async def router(self, **env: str) -> Process:
        """A router that decides."""
        router = self.start("services.router", **({"RAILBUS_TOTAL_MAX_MS": "20000"} | env))
        await router.ready()
        return router

    async def post(self, *events: AnyEvent) -> None:
        """Puts events where they belong, in order."""
        for event in events:
            await self.producer.post(topic_of(event), event)

    def written(self, kind: type[Any], request_id: str | None = None) -> list[Any]:
        """Events of a kind on the log."""
        events = (record.event for record in self.log)
        return [e for e in events if isinstance(e, kind) and (request_id is None or e.request_id == request_id)]

    def endings(self) -> dict[str, str]:
        """The outcome of each request's effective ``Closed``, by request."""
        screens: dict[str, Screen] = {}
        for record in self.log:
            if record.topic == STREAMS.name and isinstance(record.event, Event):
                screen = screens.setdefault(record.event.request_id, Screen(record.event.request_id))
                screen.feed(record.event)  # type: ignore[arg-type]
        return {request_id: screen.closed.outcome for request_id, screen in screens.items() if screen.closed}

    async def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Waits for what must happen; a condition is looked at after news, at most ten times a second."""
        async with asyncio.timeout(patience_s):
            while not condition():
                self._news.clear()
                await self._news.wait()
                await asyncio.sleep(0.1)

    def _on_records(self, records: Sequence[Received | Unread]) -> None:
        self.watch(records)
        self.log += [record for record in records if isinstance(record, Received)]
        self._news.set()


class Broker:
    """The embedded broker; with a folder it can go away and come back."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data = () if data_dir is None else ("--data-dir", str(data_dir))
        self.address = "127.0.0.1:0"
        self._process: Process | None = None

    async def start(self) -> None:
        """On the port it had before, if it had one."""
        port = self.address.rpartition(":")[2]
        self._process = Process("services.broker", "--port", port, "--min-session-ms", "1000", *self._data)
        self.address = await self._process.ready()

    async def away(self, seconds: float) -> None:
        """It stops cleanly, so that its log is whole."""
        assert self._process is not None
        await asyncio.to_thread(self._process.stop)
        await asyncio.sleep(seconds)
        await self.start()

    def kill(self) -> None:
        """At the end of the test."""
        if self._process is not None and self._process.running:
            self._process.kill()


@asynccontextmanager
async def opened(data_dir: Path | None = None) -> AsyncIterator[Lab]:
    """A broker of its own, and clients of it."""
    broker = Broker(data_dir)
    try:
        await broker.start()
        lab = Lab(BusSettings(bootstrap=broker.address, partitions=PARTITIONS), broker)
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
    finally:
        broker.kill()
