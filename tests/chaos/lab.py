"""The lab of the chaos tests: a broker and several processes of one service.

The test reads every topic, and writes the events of all other services. The service is a black box: it is
judged only by its events on the log and by the exit status of its processes.
"""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import NamedTuple

from schemas.requests import Request
from schemas.side_events import Attached, Detached
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from schemas.topics import RECEIPTS, REQUESTS, STREAMS, TOPICS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from services.stream import Screen
from tests.support.brokers import Broker
from tests.support.bus import any_role
from tests.support.processes import ServiceProcess
from tests.support.waiting import comes_true

PARTITIONS = 4
ROUNDS = int(os.environ.get("RAILBUS_TEST_ROUNDS", "1"))


class SeenEvent(NamedTuple):
    """An event, and when the test read it, in seconds of the monotonic clock."""

    at: float
    event: object


class ChaosLab:
    """The members of one service, and the log as the test reads it.

    Attributes:
        seen: For each request id, its events in the order in which the test read them. The order of events of the same
            topic is the order of the log.
        appended_ms: For each request id, when the broker appended each event of ``seen``.
        members: The running processes of the service.
        trouble: Descriptions of what members did wrong, such as ending by themselves.
        lag: The longest delay of the test's own event loop, in seconds.
    """

    def __init__(self, kind, service, folder, *, session_s, pause_s, env):
        self.broker = Broker(kind, folder / "data")
        self.service, self.session_s, self.pause_s = service, session_s, pause_s
        self.env = env
        self.seen, self.appended_ms = defaultdict(list), defaultdict(list)
        self.members = []
        self.trouble = []
        self.watch = None
        self.lag = 0.0

    async def open(self):
        self.broker.launch()
        await asyncio.to_thread(self.broker.wait_until_ready)
        self.bus = BusSettings(bootstrap=self.broker.address, partitions=PARTITIONS)
        await ensure_topics(self.bus)
        self.producer = Producer(self.bus, role=any_role(), name="test")
        await self.producer.start()
        tail = TailReader(self.bus, handler=self._on_records)
        self._tasks = [asyncio.create_task(tail.run()), asyncio.create_task(self._tick())]
        for topic in TOPICS:
            for number in range(topic.partitions(PARTITIONS)):
                await tail.follow(topic, number, "beginning")

    async def close(self):
        for member in self.members:
            member.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.producer.stop()

    async def start(self):
        where = {
            "RAILBUS_KAFKA_BOOTSTRAP": self.bus.bootstrap,
            "RAILBUS_PARTITIONS": str(PARTITIONS),
            "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": str(int(self.session_s * 1_000)),
        }
        member = ServiceProcess(f"services.{self.service}", **(where | self.env))
        self.members.append(member)
        await member.ready()

    async def have(self, count):
        """Start or stop members until ``count`` of them run, and give them time to share the partitions."""
        changed = len(self.members) != count
        while len(self.members) > count:
            await self.let_go(self.members.pop())
        while len(self.members) < count:
            await self.start()
        if changed:
            await asyncio.sleep(1.5)

    async def let_go(self, member):
        member.signal(signal.SIGTERM)
        if not await comes_true(lambda: not member.running, 30):
            self.trouble.append("told to stop, a member did not end")
        elif (status := await member.ended()) != 0:
            self.trouble.append(f"told to stop, a member ended with {status}")
        member.kill()

    async def post(self, event):
        topic = REQUESTS if isinstance(event, Request) else RECEIPTS if isinstance(event, _RECEIPTS) else STREAMS
        await self.producer.post(topic, event)

    def events(self, request_id, kind):
        return [event for _, event in self.seen[request_id] if isinstance(event, kind)]

    def when(self, request_id, wanted):
        """Return the time at which the test read the request's first event for which ``wanted`` is true, or None."""
        return next((at for at, event in self.seen[request_id] if wanted(event)), None)

    def screen(self, request_id):
        """Return the screen that results from the request's events."""
        screen = Screen(request_id)
        for _, event in self.seen[request_id]:
            if isinstance(event, _STREAM):
                screen.feed(event)
        return screen

    def check_members(self):
        for member in self.members:
            if not member.running:
                member.kill()  # prints what it wrote
                self.trouble.append(f"a member ended by itself with {member.status}")
        self.members = [member for member in self.members if member.running]

    def _on_records(self, records):
        at = time.monotonic()
        for record in records:
            if isinstance(record, Received):
                request_id = getattr(record.event, "request_id", None)
                self.seen[request_id].append(SeenEvent(at, record.event))
                self.appended_ms[request_id].append(record.timestamp_ms)
                if self.watch is not None:
                    self.watch(record)

    async def _tick(self):
        """Measure the longest delay of the event loop, ``lag``, until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            self.lag = max(self.lag, time.monotonic() - began - 0.01)


_RECEIPTS = (Attached, Detached)
_STREAM = (Verdict, Started, Chunk, Finished, Failed, Cutover, Cleared, Recall, Closed)


@asynccontextmanager
async def open_lab(kind, service, folder, *, full, **env):
    """Within the ``async with`` block, run a broker. Yield a lab that can start members of ``service``.

    With ``full``, the session timeout of the members is 10 s, as in production, instead of 3 s.
    """
    session_s, pause_s = (10, 15) if full else (3, 5)
    lab = ChaosLab(kind, service, folder, session_s=session_s, pause_s=pause_s, env=env)
    try:
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
    finally:
        if lab.broker.is_running():
            await asyncio.to_thread(lab.broker.kill)


def round_random(service, fault, number):
    """Return a random generator that draws the same numbers for the same arguments."""
    return random.Random(f"{service} {fault} {number}")
