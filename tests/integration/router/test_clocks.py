"""Test that deadlines follow the time of the log, although the clocks of the router and the edges are wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from schemas.requests import Deadlines
from schemas.stream import Closed, Cutover
from services.bus import Received
from services.router.service import RouterService
from services.router.settings import Settings
from services.runtime.clock import now_us, steady_us
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents

SECOND = 1_000_000


@contextlib.asynccontextmanager
async def router(lab: RouterLab, off_us: int) -> AsyncIterator[None]:
    """Run a router in this process during the ``with`` block. The router's clock is ``off_us`` microseconds fast."""
    ready = asyncio.Event()
    settings = Settings(
        input_gate="off", output_check="off", fallback="vertex", fallback_ratio=1.0, breaker_trip=5, bus=lab.bus
    )
    service = RouterService(settings, f"router/{off_us}", ready.set, clock=lambda: steady_us() + off_us)
    task = asyncio.create_task(service.run())
    try:
        await asyncio.wait({task, waiting := asyncio.ensure_future(ready.wait())}, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if task.done():
            task.result()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def appended_ms(lab: RouterLab, person: RequestEvents, kind: type) -> int:
    return next(
        record.timestamp_ms
        for record in lab.log
        if isinstance(record, Received) and isinstance(record.event, kind) and record.event.request_id == person.id
    )


@pytest.mark.parametrize("router_s", [-2, 2])
@pytest.mark.parametrize("edge_s", [-61, 61])
async def test_what_is_answered_in_time_is_not_cut_over_whatever_the_clocks_say(
    lab: RouterLab, router_s: int, edge_s: int
) -> None:
    people = [RequestEvents(at=now_us() + edge_s * SECOND, deadlines=Deadlines(ttft_ms=20_000)) for _ in range(12)]
    async with router(lab, router_s * SECOND):
        for person in people:
            await lab.post(person.request, person.started(), person.chunk(0), person.finished(0))
        await lab.until(lambda: len(lab.written(Closed)) == len(people))
    assert lab.written(Cutover) == []
    assert {closed.outcome for closed in lab.written(Closed)} == {"completed"}


@pytest.mark.parametrize(("router_s", "edge_s"), [(-2, 2), (2, -2), (2, 61)])
async def test_silence_is_noticed_at_the_deadline_by_the_log_and_never_before(
    lab: RouterLab, router_s: int, edge_s: int
) -> None:
    people = [RequestEvents(at=now_us() + edge_s * SECOND, deadlines=Deadlines(ttft_ms=300)) for _ in range(4)]
    async with router(lab, router_s * SECOND):
        for person in people:
            await lab.send(person.request)
            await lab.until(lambda person=person: lab.written(Cutover, person.id))
    late_ms = [
        appended_ms(lab, person, Cutover) - appended_ms(lab, person, type(person.request)) - 300 for person in people
    ]
    print("ms after the deadline:", late_ms)
    assert min(late_ms) >= -2, "early by the resolution of timestamps at most"
