"""Tests of router, Vertex AI worker and emulator in separate processes: a late request is answered from the cloud."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.requests import Sampling
from schemas.side_events import Account, Cancel
from schemas.stream import Chunk, Closed, Failed, Finished, Started
from schemas.topics import CONTROL
from services.router.config import Prices
from services.runtime.clock import now_us
from tests.integration.router.lab import RouterLab
from tests.support.processes import ServiceProcess
from tests.support.request_events import Deadlines, RequestEvents

UNHURRIED = Deadlines(stall_ms=20_000)
"""Deadlines for a busy machine: the stall deadline is long, but the first token is still late after 200 ms."""


class Cloud:
    """A ``RouterLab`` and a Vertex AI emulator, for tests of a router with a Vertex AI worker."""

    def __init__(self, lab: RouterLab, emulator: ServiceProcess, url: str) -> None:
        self.lab = lab
        self.url = url
        self.workers: list[ServiceProcess] = []

    async def worker(self, model: str = "emulated-n5-gap5", **env: str) -> ServiceProcess:
        """Start a router that falls back to Vertex AI, and a Vertex AI worker, and return the worker."""
        await self.lab.run(RAILBUS_FALLBACK="vertex", RAILBUS_FALLBACK_RATIO="1", RAILBUS_RETRIES="0")
        worker = self.lab.start("services.vertex", RAILBUS_VERTEX_URL=self.url, RAILBUS_VERTEX_MODEL=model, **env)
        assert "emulated" in await worker.ready()
        return worker

    async def stats(self) -> dict[str, int]:
        """Return the emulator's counters."""

        def get() -> dict[str, int]:
            with urllib.request.urlopen(f"{self.url}/stats", timeout=30) as answer:
                counted: dict[str, int] = json.load(answer)
            return counted

        return await asyncio.to_thread(get)

    async def counted(self, name: str, count: int) -> None:
        """Wait until the emulator's counter ``name`` has the value ``count``."""
        async with asyncio.timeout(60):
            while (await self.stats()).get(name, 0) != count:  # noqa: ASYNC110 - another process counts
                await asyncio.sleep(0.02)


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with RouterLab.opened() as lab:
        emulator = lab.start("services.devtools.vertex")
        yield Cloud(lab, emulator, await emulator.ready())


async def closed(lab: RouterLab, person: RequestEvents) -> Closed:
    await lab.until(lambda: bool(lab.written(Account, person.id)))
    (event,) = lab.written(Closed, person.id)
    assert isinstance(event, Closed)
    return event


async def test_late_request_is_answered_from_the_cloud(cloud: Cloud) -> None:
    await cloud.worker(RAILBUS_OUTPUT_CHECK="off")
    person = RequestEvents(sampling=Sampling(max_tokens=50), deadlines=UNHURRIED)
    await cloud.lab.post(person.request, person.started())
    assert (await closed(cloud.lab, person)).outcome == "completed"
    first, second = cloud.lab.written(Started, person.id)
    assert (first.attempt, second.attempt, second.engine) == (1, 2, "vertex")
    assert second.at - second.received_at >= 195_000  # the deadlines still count from the request's receipt
    text = "".join(chunk.text for chunk in cloud.lab.written(Chunk, person.id))
    assert text == "The cloud answers in place"
    (account,) = cloud.lab.written(Account, person.id)
    assert account.attempts[1].usage.completion_tokens == 5
    assert account.cost_usd > 0


async def test_race_that_the_engine_wins_stops_the_cloud(cloud: Cloud) -> None:
    await cloud.worker("emulated-n1000-ttft60000-gap20")
    person = RequestEvents(fallback="race", deadlines=UNHURRIED)
    await cloud.lab.post(person.request, person.started())
    await cloud.counted("running", 1)
    await cloud.lab.post(person.chunk(0))
    await cloud.counted("cut_off", 1)
    await cloud.lab.post(person.finished(0))
    assert (await closed(cloud.lab, person)).outcome == "completed"
    assert [(e.reason, e.attempt) for e in cloud.lab.written(Cancel, person.id)] == [("lost_race", 2)]


@pytest.mark.parametrize(("script", "reason"), [("err403", "auth"), ("shut", "safety_block"), ("die2", "unavailable")])
async def test_cloud_that_fails_closes_the_request_with_its_reason(cloud: Cloud, script: str, reason: str) -> None:
    await cloud.worker(f"emulated-n9-gap1-{script}")
    person = RequestEvents(deadlines=UNHURRIED)
    await cloud.lab.post(person.request, person.started(), person.failed())
    ending = await closed(cloud.lab, person)
    assert ending.outcome == "failed"
    assert ending.reason.startswith(reason)


async def test_a_killed_workers_request_ends_at_its_stall_deadline(cloud: Cloud) -> None:
    worker = await cloud.worker("emulated-n9-gap1-stall3")
    person = RequestEvents(deadlines=Deadlines(stall_ms=5_000))
    await cloud.lab.post(person.request, person.started())
    await cloud.lab.until(lambda: len(cloud.lab.written(Chunk, person.id)) == 3)
    worker.kill()
    ending = await closed(cloud.lab, person)
    assert (ending.outcome, ending.cause) == ("failed", "stalled")
    assert ending.reason == "the answer stalled, and there are no retries and the fallback was used"


async def test_worker_that_is_stopped_says_so_and_ends_the_calls(cloud: Cloud) -> None:
    worker = await cloud.worker("emulated-n9-gap1-stall3", RAILBUS_VERTEX_DRAIN_MS="0")
    person = RequestEvents(deadlines=UNHURRIED)
    await cloud.lab.post(person.request, person.started())
    await cloud.lab.until(lambda: len(cloud.lab.written(Chunk, person.id)) == 3)
    assert await worker.stop() == 0
    await cloud.lab.until(lambda: bool(cloud.lab.written(Failed, person.id)))
    await cloud.counted("cut_off", 1)
    assert (await closed(cloud.lab, person)).outcome == "failed"


async def test_cancel_ends_the_call_and_its_cost(cloud: Cloud) -> None:
    await cloud.worker("emulated-n5000-gap10")
    person = RequestEvents(deadlines=UNHURRIED)
    await cloud.lab.post(person.request, person.started())
    await cloud.lab.until(lambda: bool(cloud.lab.written(Chunk, person.id)))
    fields: dict[str, Any] = person.about() | {"at": now_us()}
    await cloud.lab.producer.send(CONTROL, Cancel(**fields, attempt=2, reason="operator"))
    await cloud.counted("cut_off", 1)
    assert (await closed(cloud.lab, person)).outcome == "cancelled"
    assert cloud.lab.written(Finished, person.id) == []
    failed = cloud.lab.written(Failed, person.id)[-1]
    (account,) = cloud.lab.written(Account, person.id)
    assert failed.usage.prompt_tokens > 0, "Google has read the prompt, and it must be paid"
    assert account.cost_usd == Prices().of(failed.usage)


async def test_without_credentials_the_worker_says_what_is_missing(cloud: Cloud, tmp_path: Any) -> None:
    worker = cloud.lab.start(
        "services.vertex", NO_GCE_CHECK="true", CLOUDSDK_CONFIG=str(tmp_path), GOOGLE_APPLICATION_CREDENTIALS=""
    )
    assert await worker.ended() == 2
