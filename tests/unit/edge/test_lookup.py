"""Look-ups on the log: tenants take turns with the readers, and a long look-up does not keep one."""

import asyncio
import contextlib

import pytest

from schemas.ids import uuid7
from services.bus import BusSettings
from services.edge.errors import ApiError
from services.edge.log import lookup
from services.edge.log.lookup import MAX_LOOKUPS, MAX_TENANT_LOOKUPS, READERS, LogLookup, ReaderTurns
from services.edge.log.request_index import RequestIndex
from services.runtime.clock import now_ms
from tests.support.waiting import until

ENDLESS = 10**12


class SlowReader:
    """A reader of a log without an end."""

    async def read(self, target, start, found, enough):
        position = start if isinstance(start, int) else 0
        while position < target.end and not enough():
            await asyncio.sleep(0.001)
            position += 1
        return position


def log_lookup():
    it = LogLookup(BusSettings(), RequestIndex())
    it._readers = [SlowReader() for _ in range(READERS)]
    it._turns = ReaderTurns(it._readers, lookup.TENANT_READERS)
    return it


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def history(it, tenant, end):
    return asyncio.create_task(it.history(uuid7(now_ms(), 1), 0, end, tenant))


async def test_a_short_look_up_ends_beside_more_long_ones_than_readers(monkeypatch):
    monkeypatch.setattr(lookup, "SLICE_S", 0.01)
    it = log_lookup()
    long = [history(it, tenant, ENDLESS) for tenant in ("a", "a", "a", "a", "b", "c", "d")]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        assert await it.history(uuid7(now_ms(), 1), 0, 3, "a") == []
        assert await it.history(uuid7(now_ms(), 1), 0, 3, "new") == []
    assert not any(task.done() for task in long)
    await ended(*long)


async def test_one_tenant_leaves_a_reader_to_others():
    turns, holding = ReaderTurns([SlowReader() for _ in range(READERS)], READERS - 1), []

    async def hold(tenant):
        async with turns.turn(tenant):
            holding.append(tenant)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold("a")) for _ in range(2 * READERS)]
    await until(lambda: len(holding) == READERS - 1)
    tasks.append(asyncio.create_task(hold("b")))
    await until(lambda: "b" in holding)
    assert turns.waiting == READERS + 1
    tasks[-1].cancel()
    tasks[0].cancel()
    await until(lambda: holding.count("a") == READERS)
    await ended(*tasks)
    assert turns.waiting == 0


async def test_a_turn_that_is_cancelled_while_it_is_granted_is_given_back():
    turns = ReaderTurns([SlowReader()], 1)

    async def take():
        async with turns.turn("a"):
            pass

    for _ in range(3):
        task = asyncio.create_task(take())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    async with asyncio.timeout(20):
        await take()


async def test_look_ups_are_bounded_for_a_tenant_and_in_all():
    it, tasks = log_lookup(), []
    for tenant, status in (("a", 429), ("b", 503)):
        tasks += [history(it, tenant, ENDLESS) for _ in range(MAX_TENANT_LOOKUPS)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await it.history(uuid7(now_ms(), 1), 0, 1, tenant)
        assert (refused.value.status, refused.value.code) == (status, "busy")
    assert len(tasks) == MAX_LOOKUPS
    await ended(*tasks)
    assert await it.history(uuid7(now_ms(), 1), 0, 1, "a") == []


async def test_a_look_up_that_takes_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(lookup, "LOOKUP_TIMEOUT_S", 0.05)
    with pytest.raises(ApiError) as late:
        await log_lookup().history(uuid7(now_ms(), 1), 0, ENDLESS, "a")
    assert late.value.code == "log_unavailable"
