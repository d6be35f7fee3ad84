"""Real processes: an embedded broker and generators; the test plays the apps that ask and the router that cancels."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.books import Cancel
from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery, Message, Request, Sampling
from schemas.stream import Chunk, Failed, Finished, Started
from schemas.topics import CONTROL, REQUESTS, REQUESTS_BATCH, STREAMS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from tests.support.bus import any_role

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30
PARTITIONS = 2


def bare_environment():
    """This process's environment without any setting of the product."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAILBUS_")}


class Process:
    """A service; killed when the test ends."""

    def __init__(self, *command, **env):
        self.popen = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, env=bare_environment() | env, stdout=subprocess.PIPE, text=True
        )

    async def ready(self):
        line = await asyncio.wait_for(asyncio.to_thread(self.popen.stdout.readline), PATIENCE_S)
        assert line.startswith("ready "), f"it ended with {self.popen.poll()}"
        return line.removeprefix("ready ").strip()

    async def ended(self):
        return await asyncio.wait_for(asyncio.to_thread(self.popen.wait), PATIENCE_S)

    async def stop(self):
        self.popen.send_signal(signal.SIGTERM)
        return await self.ended()

    def kill(self):
        self.popen.kill()
        self.popen.wait(PATIENCE_S)
        self.popen.stdout.close()


class Lab:
    def __init__(self, bus):
        self.bus = bus
        self.producer = Producer(bus, role=any_role(), name="test")
        self.records = []
        self._processes = []
        self._news = asyncio.Event()
        self._tail = TailReader(bus, handler=self._on_records)

    async def open(self):
        await ensure_topics(self.bus)
        await self.producer.start()
        self._reading = asyncio.create_task(self._tail.run())
        for partition in range(PARTITIONS):
            await self._tail.follow(STREAMS, partition, "beginning")

    async def close(self):
        for process in self._processes:
            process.kill()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.producer.stop()

    async def generator(self, **env):
        process = Process(
            "services.generator",
            **{
                "RAILBUS_KAFKA_BOOTSTRAP": self.bus.bootstrap,
                "RAILBUS_PARTITIONS": str(PARTITIONS),
                "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1500",
                "RAILBUS_ENGINE": "simulated",
                "RAILBUS_SIM_TIME_SCALE": "0.2",
                **env,
            },
        )
        self._processes.append(process)
        self.ready_line = await process.ready()
        return process

    async def restart_broker(self):
        """Ends it as an operator does and starts it again where it was, after a while."""
        assert await self.broker.stop() == 0
        self.broker.kill()
        await asyncio.sleep(0.7)
        port = self.bus.bootstrap.rpartition(":")[2]
        self.broker = Process("services.broker", "--port", port, *self.broker_arguments)
        await self.broker.ready()

    async def ask(self, model="default", **changes):
        """Puts a request on the log; its id."""
        request = asking(model, **changes)
        await self.send(request)
        return request.request_id

    async def send(self, request):
        topic = REQUESTS_BATCH if request.lane == "batch" else REQUESTS
        await self.producer.send(topic, request)

    async def cancel(self, request_id, *, attempt=None, reason="client_gone"):
        event = Cancel(
            request_id=request_id,
            tenant="acme",
            at=time.time_ns() // 1_000,
            source="test",
            attempt=attempt,
            reason=reason,
        )
        await self.producer.send(CONTROL, event)

    def events(self, request_id, *kinds):
        return [
            record.event
            for record in self.records
            if record.event.request_id == request_id and (not kinds or isinstance(record.event, kinds))
        ]

    def chunks(self, request_id):
        return self.events(request_id, Chunk)

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def chunk(self, request_id, seq=0):
        """Waits for a chunk."""
        await self.until(lambda: len(self.chunks(request_id)) > seq)

    async def end(self, request_id):
        """Waits for the last event of an execution."""
        await self.until(lambda: self.events(request_id, Finished, Failed))
        return self.events(request_id, Finished, Failed)[0]

    def check(self, request_id):
        """What holds for every execution: one Started, chunks without gap or overlap, one end, in this order."""
        events = self.events(request_id)
        runs = {event.run for event in events}
        for run in runs:
            mine = [event for event in events if event.run == run]
            chunks = [event for event in mine if isinstance(event, Chunk)]
            assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
            assert [chunk.start for chunk in chunks] == [
                sum(len(other.text) for other in chunks[:n]) for n in range(len(chunks))
            ]
            ends = [event for event in mine if isinstance(event, Finished | Failed)]
            assert len(ends) <= 1
            if ends:
                assert mine[-1] is ends[0]
                assert ends[0].last_seq == len(chunks) - 1
            if chunks:
                assert isinstance(mine[0], Started)
        return runs

    def _on_records(self, records):
        self.records += [record for record in records if isinstance(record, Received)]
        self._news.set()


def asking(model="default", *, total_ms=60_000, mode="optimistic", age_ms=0, **changes):
    """A request as an app makes it."""
    now_ms = time.time_ns() // 1_000_000
    return Request(
        request_id=uuid7(now_ms, random.getrandbits(74)),
        tenant="acme",
        at=(now_ms - age_ms) * 1_000,
        source="test",
        model=model,
        messages=(Message(role="user", content="Tell me about rivers."),),
        sampling=Sampling(max_tokens=500),
        delivery=Delivery(mode=mode),
        deadlines=Deadlines(total_ms=total_ms),
        **changes,
    )


@asynccontextmanager
async def opened(*arguments):
    """A broker of its own, and the lab."""
    arguments = ("--min-session-ms", "1000", *arguments)
    broker = Process("services.broker", "--port", "0", *arguments)
    address = await broker.ready()
    lab = Lab(BusSettings(bootstrap=address, partitions=PARTITIONS))
    lab.broker, lab.broker_arguments = broker, arguments
    try:
        await lab.open()
        yield lab
    finally:
        await lab.close()
        lab.broker.kill()
