"""Test fallbacks with real router processes and a real broker, also while routers join, stop and are killed."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from schemas.requests import Deadlines, Request
from schemas.side_events import Account, Cancel
from schemas.stream import Closed, Cutover
from schemas.topics import REQUESTS_VERTEX
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents

CLOUD = {"RAILBUS_FALLBACK": "vertex", "RAILBUS_FALLBACK_RATIO": "1", "RAILBUS_RETRIES": "0"}


class Cloud:
    """The Vertex AI worker, played by the test. It answers every request that reaches it, and counts the requests."""

    def __init__(self, lab: RouterLab, people: dict[str, RequestEvents]) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self._lab = lab
        self._people = people
        self._seen = 0

    async def run(self) -> None:
        while True:
            await self._lab.until(lambda: len(self._lab.log) > self._seen, within_s=60)
            news, self._seen = self._lab.log[self._seen :], len(self._lab.log)
            for record in news:
                if record.topic == REQUESTS_VERTEX.name and isinstance(record.event, Request):
                    attempt = record.event.attempt
                    self.calls[record.event.request_id, attempt] += 1
                    person = self._people[record.event.request_id]
                    events = person.started(attempt), person.chunk(0, attempt), person.finished(0, attempt)
                    await self._lab.post(*events)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_each_trigger_sends_the_prompt_to_the_cloud_and_completes(lab: RouterLab) -> None:
    await lab.run(**CLOUD)
    late, racing = RequestEvents(), RequestEvents(fallback="race")
    broken = RequestEvents(deadlines=Deadlines(ttft_ms=20_000))
    stalled = RequestEvents(deadlines=Deadlines(ttft_ms=20_000, stall_ms=200))
    people = {person.id: person for person in (late, racing, broken, stalled)}
    async with Cloud(lab, people).running():
        for person in people.values():
            await lab.post(person.request, person.started())
        await lab.post(broken.failed(), stalled.chunk(0))
        await lab.until(lambda: len(lab.written(Closed)) == len(people))
    triggers = {e.request_id: (e.trigger, e.how) for e in lab.written(Cutover)}
    assert triggers == {
        late.id: ("ttft", "cancel"),
        racing.id: ("ttft", "race"),
        broken.id: ("hard_error", "cancel"),
        stalled.id: ("stall", "cancel"),
    }
    assert {closed.outcome for closed in lab.written(Closed)} == {"completed"}
    reasons = {(e.request_id, e.attempt): e.reason for e in lab.written(Cancel)}
    assert reasons == {(late.id, 1): "cutover", (racing.id, 1): "lost_race", (stalled.id, 1): "cutover"}


async def test_without_a_cloud_each_trigger_retries_on_the_self_hosted_engines(lab: RouterLab) -> None:
    await lab.run()
    late = RequestEvents(deadlines=Deadlines(ttft_ms=200, stall_ms=300))
    stalled = RequestEvents(deadlines=Deadlines(ttft_ms=20_000, stall_ms=300))
    dead = RequestEvents(deadlines=Deadlines(ttft_ms=20_000, stall_ms=20_000))
    for person in (late, stalled, dead):
        await lab.post(person.request)
    await lab.post(stalled.started(), stalled.chunk(0), dead.started(), dead.failed(error_class="engine_dead"))
    again = lambda: [r.event for r in lab.log if isinstance(r.event, Request) and r.event.attempt == 2]  # noqa: E731
    await lab.until(lambda: len(again()) == 3)
    cutovers = {e.request_id: (e.trigger, e.how, e.target) for e in lab.written(Cutover) if e.attempt == 2}
    assert cutovers == {
        late.id: ("ttft", "race", "generator"),
        stalled.id: ("stall", "cancel", "generator"),
        dead.id: ("hard_error", "cancel", "generator"),
    }
    for person in (late, stalled, dead):
        await lab.post(person.started(2), person.chunk(0, 2), person.finished(0, 2))
    await lab.until(lambda: len(lab.endings()) == 3)
    assert set(lab.endings().values()) == {"completed"}


async def test_routers_that_come_and_go_disturb_nothing(lab: RouterLab) -> None:
    """Every request is completed in the cloud, although routers join, stop and are killed meanwhile."""
    # The total deadline is long, because on a busy machine the routers lose their partitions more often than planned.
    env = CLOUD | {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1000", "RAILBUS_TOTAL_MAX_MS": "60000"}
    people: dict[str, RequestEvents] = {}

    async def load() -> None:
        for _ in range(120):
            person = RequestEvents()
            people[person.id] = person
            await lab.post(person.request, person.started())
            await asyncio.sleep(0.05)

    cloud = Cloud(lab, people)
    await lab.run(**env)
    async with cloud.running():
        loading = asyncio.create_task(load())
        for end in ("stop", "kill", "stop"):
            other = await lab.run(**env)
            await asyncio.sleep(0.5)
            if end == "stop":
                assert await other.stop() == 0
            else:
                other.kill()
        await loading
        await lab.until(lambda: len({account.request_id for account in lab.written(Account)}) == len(people))
    assert set(lab.endings().values()) == {"completed"}
    assert cloud.calls.keys() == {(request_id, 2) for request_id in people}


async def test_prompts_that_must_stay_never_reach_the_cloud_topic(lab: RouterLab) -> None:
    await lab.run(**CLOUD)
    kept = [RequestEvents(egress="forbidden", deadlines=Deadlines(total_ms=1_000)) for _ in range(50)]
    free = [RequestEvents(deadlines=Deadlines(total_ms=8_000)) for _ in range(5)]  # time for the cloud to be asked
    for person in (*kept, *free):
        await lab.post(person.request, person.started())
    await lab.post(*(person.failed() for person in kept[::2]))
    await lab.until(lambda: len(lab.written(Closed)) == len(kept) + len(free))
    sent = {r.event.request_id for r in lab.log if r.topic == REQUESTS_VERTEX.name and isinstance(r.event, Request)}
    assert sent == {person.id for person in free}
