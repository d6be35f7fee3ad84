"""A broker, members of one service, and faults; the test writes what everybody else would, and reads every topic.

Nothing here looks into a service: it is judged by what it writes to the log, started as a process, and sent signals.
"""

import asyncio
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from schemas.books import Attached, Detached
from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery, Message, Request
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from schemas.topics import RECEIPTS, REQUESTS, STREAMS, TOPICS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from services.runtime.clock import now_ms, now_us
from services.stream import Screen
from tests.contract.brokers import Broker, _die_with_parent

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4
START_S = 90.0
STEP_S = (0.05, 0.10)
"""Between two chunks of an answer."""

ROUNDS = int(os.environ.get("RAILBUS_TEST_ROUNDS", "1"))


async def until(condition, patience_s):
    """Whether it became true in time."""
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


class Seen(NamedTuple):
    """A record and when the test read it, by the monotonic clock."""

    at: float
    event: object


class Member:
    """One process of the service."""

    def __init__(self, service, number, folder, env):
        self._said = folder / f"{service}-{number}.out"
        self.errors = self._said.with_suffix(".err")
        settings = {name: value for name, value in os.environ.items() if not name.startswith("RAILBUS_")}
        with self._said.open("wb") as out, self.errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"],
                cwd=ROOT,
                env=settings | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                preexec_fn=_die_with_parent,
            )

    async def ready(self):
        ready = await until(lambda: "ready " in self._said.read_text() or not self.running, START_S)
        assert ready, "the member was not ready in time"
        assert self.running, f"the member ended: {self.errors.read_text()[-2_000:]}"

    @property
    def running(self):
        return self._popen.poll() is None

    def signal(self, number):
        self._popen.send_signal(number)

    def kill(self):
        self._popen.kill()
        self._popen.wait()

    async def leave(self):
        """As an operator stops it; its exit status, None if it does not go."""
        self._popen.send_signal(signal.SIGTERM)
        gone = await until(lambda: not self.running, 30)
        if not gone:
            self.kill()
        return self._popen.returncode if gone else None


class Lab:
    """The log as the test reads it, and the members of one service.

    Attributes:
        seen: By request id, in the order in which the test read it; one request's records of one topic are in order.
        members: Processes that run.
        trouble: What members did that no member may do.
    """

    def __init__(self, kind, service, folder, *, session_s, pause_s, env):
        self.broker = Broker(kind, folder / "data")
        self.service, self.session_s, self.pause_s = service, session_s, pause_s
        self.env = env
        self.seen = defaultdict(list)
        self.members = []
        self.trouble = []
        self.watch = None
        self.lag = 0.0
        self._folder = folder
        self._numbers = iter(range(1_000_000))

    async def open(self):
        self.broker.launch()
        await asyncio.to_thread(self.broker.wait_until_ready)
        self.bus = BusSettings(bootstrap=self.broker.address, partitions=PARTITIONS)
        await ensure_topics(self.bus)
        self.producer = Producer(self.bus, name="test")
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
        member = Member(self.service, next(self._numbers), self._folder, where | self.env)
        self.members.append(member)
        await member.ready()

    async def have(self, count):
        """Exactly so many members; they have had a moment to share the partitions."""
        changed = len(self.members) != count
        while len(self.members) > count:
            await self.let_go(self.members.pop())
        while len(self.members) < count:
            await self.start()
        if changed:
            await asyncio.sleep(1.5)

    async def let_go(self, member):
        status = await member.leave()
        if status != 0:
            self.trouble.append(f"told to stop, a member ended with {status}")

    async def post(self, event):
        topic = REQUESTS if isinstance(event, Request) else RECEIPTS if isinstance(event, _RECEIPTS) else STREAMS
        await self.producer.post(topic, event)

    def events(self, request_id, kind):
        return [event for _, event in self.seen[request_id] if isinstance(event, kind)]

    def when(self, request_id, wanted):
        """When the test read the first such event; None if it did not."""
        return next((at for at, event in self.seen[request_id] if wanted(event)), None)

    def screen(self, request_id):
        """The request's stream log, folded."""
        screen = Screen(request_id)
        for _, event in self.seen[request_id]:
            if isinstance(event, _STREAM):
                screen.feed(event)
        return screen

    def check_members(self):
        self.trouble += [
            f"a member ended by itself: {m.errors.read_text()[-500:]}" for m in self.members if not m.running
        ]
        self.members = [member for member in self.members if member.running]

    def _on_records(self, records):
        at = time.monotonic()
        for record in records:
            if isinstance(record, Received):
                self.seen[getattr(record.event, "request_id", None)].append(Seen(at, record.event))
                if self.watch is not None:
                    self.watch(record)

    async def _tick(self):
        """How late the test itself is on this machine."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            self.lag = max(self.lag, time.monotonic() - began - 0.01)


_RECEIPTS = (Attached, Detached)
_STREAM = (Verdict, Started, Chunk, Finished, Failed, Cutover, Cleared, Recall, Closed)


# ---- Faults


async def _join(lab, rng):
    await lab.start()


async def _leave(lab, rng):
    await lab.let_go(lab.members.pop(rng.randrange(2)))


async def _pause(lab, rng):
    member = rng.choice(lab.members)
    member.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(lab.pause_s)
    finally:
        member.signal(signal.SIGCONT)


async def _kill(lab, rng):
    lab.members.pop(rng.randrange(2)).kill()
    await asyncio.sleep(lab.session_s + 1)


async def _broker(lab, rng):
    await asyncio.to_thread(lab.broker.kill)
    await asyncio.sleep(1)
    lab.broker.launch()
    await asyncio.to_thread(lab.broker.wait_until_ready)
    await asyncio.sleep(1)


async def _nothing(lab, rng):
    await asyncio.sleep(1)


FAULTS = {
    "broker": (1, _broker),
    "join": (1, _join),
    "pause": (2, _pause),
    "broker of two": (2, _broker),
    "leave": (2, _leave),
    "kill": (2, _kill),
}
"""How many members there are before, and what is done; in an order that starts few of them."""

BEFORE_S = 1.5


class Stage:
    """What every player of a round looks at: 0 before the fault, 1 while it lasts, 2 after it."""

    def __init__(self):
        self.phase = 0


async def staged(lab, fault, rng, *, through, inside):
    """Let players play: those ``through`` begin before the fault, those ``inside`` after it began."""
    members, strike = (2, _nothing) if fault == "none" else FAULTS[fault]
    await lab.have(members)
    stage, lasts_s = Stage(), {"pause": lab.pause_s, "kill": lab.session_s}.get(fault, 1.0)

    async def later(player, delay_s):
        await asyncio.sleep(delay_s)
        await player(stage)

    async with asyncio.TaskGroup() as tasks:
        for player in through:
            tasks.create_task(later(player, rng.uniform(0, BEFORE_S - 0.5)))
        await asyncio.sleep(BEFORE_S)
        stage.phase = 1
        for player in inside:
            tasks.create_task(later(player, rng.uniform(0, lasts_s)))
        await strike(lab, rng)
        await asyncio.sleep(0.5)
        stage.phase = 2
    lab.check_members()


# ---- What others say


class Talk:
    """One request, and what app, rails, workers, safety and edge say about it; notes when its player was late.

    Attributes:
        slow_s: Longest time between two of its posts.
    """

    def __init__(self, lab, *, deadlines=None, prompt="What is a log?", **fields):
        self.lab, self.id = lab, uuid7(now_ms(), secrets.randbits(74))
        self.run, self.text, self.seq, self.slow_s, self._last = secrets.token_hex(4), "", 0, 0.0, None
        message = Message(role="user", content=prompt)
        self.request = Request(
            **self.head(), messages=(message,), deadlines=deadlines or Deadlines(total_ms=60_000), **fields
        )

    def head(self):
        return {"request_id": self.id, "tenant": "acme", "at": now_us(), "source": "test"}

    def voice(self, attempt=1):
        return {**self.head(), "attempt": attempt, "run": f"{self.run}/{attempt}"}

    async def post(self, *events):
        now = time.monotonic()
        if self._last is not None:
            self.slow_s = max(self.slow_s, now - self._last)
        self._last = now
        for event in events:
            await self.lab.post(event)

    def ask(self):
        """Receipt is now."""
        self.request = Request(**{**_fields(self.request), "at": now_us()})
        return self.request

    def started(self, attempt=1, **fields):
        more = {"input_gate": "hold", "output_check": "on"} | fields
        return Started(
            **self.voice(attempt), model="m", engine="simulated", queue_ms=1.0, received_at=self.request.at,
            delivery=Delivery(), deadlines=self.request.deadlines, **more,
        )  # fmt: skip

    def chunk(self, text, attempt=1):
        event = Chunk(**self.voice(attempt), seq=self.seq, start=len(self.text), text=text)
        self.seq, self.text = self.seq + 1, self.text + text
        return event

    def verdict(self, decision="allow"):
        return Verdict(**self.head(), decision=decision, policy_version="v", refusal="no")

    def finished(self, attempt=1):
        return Finished(**self.voice(attempt), last_seq=self.seq - 1, finish_reason="stop")

    def failed(self):
        return Failed(**self.voice(), error_class="bad_request", message="refused", retryable=False)

    def cleared(self, *, final=False):
        return Cleared(**self.voice(), seq=self.seq - 1, final=final, policy_version="v")

    def recall(self, action):
        return Recall(
            **self.voice(), recall_id=secrets.token_hex(4), start=0, end=3, action=action, replacement="-", rule="r",
            category="c", policy_version="v",
        )  # fmt: skip

    def closed(self):
        return Closed(**self.head(), outcome="completed")

    def attached(self, connection="c"):
        return Attached(**self.head(), connection=connection, transport="sse", partition=0)

    def detached(self, reason="gone", connection="c"):
        return Detached(**self.head(), connection=connection, reason=reason, ops=0, ops_hash="0" * 64)


def _fields(event):
    return {name: getattr(event, name) for name in event.__dataclass_fields__}


# ---- What was found


@dataclass
class Found:
    """Of one round, or of several of one service and fault. Times are seconds.

    Attributes:
        wrong: What must never be; the rest are figures.
        reactions: From a cause on the log to what the service owed.
    """

    service: str
    fault: str
    rounds: int = 1
    answers: int = 0
    unended: int = 0
    visible: int = 0
    outcomes: int = 0
    cut: int = 0
    late: int = 0
    duplicates: int = 0
    excused: int = 0
    reactions: list = field(default_factory=list)
    wrong: list = field(default_factory=list)

    def add(self, other):
        for name in ("rounds", "answers", "unended", "visible", "outcomes", "cut", "late", "duplicates", "excused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reactions += other.reactions
        self.wrong += other.wrong

    def row(self):
        times = [f"{statistics.median(self.reactions):.3f}", f"{max(self.reactions):.3f}"] if self.reactions else "--"
        figures = (self.rounds, self.answers, self.unended, self.visible, self.outcomes, self.cut, self.late)
        return [self.service, self.fault, *map(str, (*figures, self.duplicates, self.excused)), *times]


HEAD = "service fault rounds answers unended visible outcome cut late twice excused p50_s max_s".split()  # noqa: SIM905


def table(founds):
    rows = [HEAD, *(found.row() for found in founds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def concluded(lab, found):
    """Adds what members did wrong, prints the round, and gives it back."""
    found.wrong += lab.trouble
    lab.trouble = []
    print(f"\n{table([found])}", *(f"  {line}" for line in found.wrong[:8]), sep="\n", flush=True)
    return found


@asynccontextmanager
async def opened(kind, service, folder, *, full, **env):
    """A broker of its own with one service's members. ``full`` has the session timeout of production."""
    session_s, pause_s = (10, 15) if full else (3, 5)
    lab = Lab(kind, service, folder, session_s=session_s, pause_s=pause_s, env=env)
    try:
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
    finally:
        if lab.broker.is_running():
            await asyncio.to_thread(lab.broker.kill)


def dice(service, fault, number):
    """The same rounds every time."""
    return random.Random(f"{service} {fault} {number}")
