"""Real processes: the embedded broker and safety services; the generator, rails and router are played by the test."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.ids import uuid7
from schemas.stream import Cleared, Recall
from schemas.topics import STREAMS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from services.runtime.clock import now_ms
from services.stream import Screen
from tests.support.bus import any_role
from tests.unit.safety.world import Answer

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30.0
PARTITIONS = 2


class Process:
    """A service's process; whoever starts it ends it."""

    def __init__(self, *command, stderr=None, **env):
        self._popen = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    async def ready(self):
        line = await asyncio.wait_for(asyncio.to_thread(self._popen.stdout.readline), PATIENCE_S)
        assert line.startswith("ready "), f"process ended with {self._popen.poll()}"
        return line.removeprefix("ready ").strip()

    def signal(self, number):
        self._popen.send_signal(number)

    def kill(self):
        if self._popen.poll() is None:
            self._popen.kill()
        return self._close()

    def stop(self):
        """As an operator stops it; its exit status."""
        self._popen.send_signal(signal.SIGTERM)
        return self._close()

    def _close(self):
        status = self._popen.wait(PATIENCE_S)
        self._popen.stdout.close()
        return status


class Lab:
    """The log as the test reads it, and the services it started."""

    service = "services.safety"

    def __init__(self, bus):
        self.bus = bus
        self.producer = Producer(bus, role=any_role(), name="test")
        self.log = []
        self._tail = TailReader(bus, handler=self._on_records)
        self._services = []
        self._news = asyncio.Event()

    async def open(self):
        await ensure_topics(self.bus)
        await self.producer.start()
        self._reading = asyncio.create_task(self._tail.run())
        for number in range(PARTITIONS):
            await self._tail.follow(STREAMS, number, "beginning")

    async def close(self):
        for service in self._services:
            service.kill()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.producer.stop()

    def spawn(self, stderr=None, **env):
        service = Process(
            self.service,
            stderr=stderr,
            RAILBUS_KAFKA_BOOTSTRAP=self.bus.bootstrap,
            RAILBUS_PARTITIONS=str(PARTITIONS),
            RAILBUS_KAFKA_SESSION_TIMEOUT_MS="3000",
            **env,
        )
        self._services.append(service)
        return service

    async def safety(self, **env):
        service = self.spawn(**env)
        await service.ready()
        return service

    async def post(self, *events):
        for event in events:
            await self.producer.post(STREAMS, event)

    def said(self, answer=None):
        """What safety wrote, about one request or all."""
        request_id = None if answer is None else answer.head["request_id"]
        events = (record.event for record in self.log)
        return [e for e in events if isinstance(e, Cleared | Recall) and request_id in {None, e.request_id}]

    def is_final(self, answer):
        return any(isinstance(event, Cleared) and event.final for event in self.said(answer))

    def screen(self, answer):
        """The request's log, folded."""
        screen = Screen(answer.head["request_id"])
        for record in self.log:
            if record.event.request_id == screen.request_id:
                screen.feed(record.event)
        return screen

    async def until(self, condition, patience_s=PATIENCE_S):
        async with asyncio.timeout(patience_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _on_records(self, records):
        self.log += [record for record in records if isinstance(record, Received)]
        self._news.set()


class FreshAnswer(Answer):
    """An answer of a request that is received now."""

    def __init__(self, number, **how):
        super().__init__(**how)
        head = {"request_id": uuid7(now_ms(), number * 7_919 + 1), "at": now_ms() * 1_000}
        self.head |= head
        self.voice |= head


@asynccontextmanager
async def opened():
    """A broker of its own, and clients of it."""
    broker = Process("services.broker", "--port", "0", "--min-session-ms", "1000")
    try:
        address = await broker.ready()
        lab = Lab(BusSettings(bootstrap=address, partitions=PARTITIONS))
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
    finally:
        broker.kill()
