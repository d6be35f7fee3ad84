"""Test that one tenant's look-ups do not block another's, and that long look-ups do not block short ones."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from schemas.ids import uuid7
from services.bus import BusSettings
from services.edge.errors import ApiError
from services.edge.log import lookup
from services.edge.log.lookup import MAX_LOOKUPS, MAX_TENANT_LOOKUPS, READERS, LogLookup
from services.edge.log.request_index import RequestIndex
from services.runtime.clock import now_ms
from tests.support.waiting import until

ENDLESS = 10**12


class SlowTail:
    """A stand-in for a ``TailReader``. It never delivers a record."""

    async def run(self):
        await asyncio.Event().wait()

    async def offset_at(self, topic, partition, time_ms):
        return 0


class SlowReader:
    """A stand-in for a reader of an endless log. Each call of ``position`` moves the reader forward by 100 offsets.

    ``turns`` counts the calls of ``start``.
    """

    def __init__(self):
        self.tail, self.turns, self._offset = SlowTail(), 0, 0

    async def start(self, turn):
        self.turns += 1
        self._offset = turn.begin
        return turn.begin

    def position(self, turn):
        self._offset += 100
        return self._offset

    async def stop(self, turn):
        await asyncio.sleep(0)


@asynccontextmanager
async def log_lookup(reader=SlowReader):
    it = LogLookup(BusSettings(), RequestIndex())
    it._readers = [reader() for _ in range(READERS)]
    running = asyncio.create_task(it.run())
    yield it
    await ended(running)


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def history(it, tenant, end, partition=0, begin=0):
    return asyncio.create_task(it.history(uuid7(now_ms(), 1), partition, end, tenant, begin))


async def test_a_short_look_up_ends_beside_more_long_ones_than_readers(monkeypatch):
    monkeypatch.setattr(lookup, "SLICE_S", 0.01)
    async with log_lookup() as it:
        begins = [number * 10**9 for number in range(1, 8)]  # too far from each other to share what is read
        long = [history(it, tenant, ENDLESS, n, begins[n]) for n, tenant in enumerate("aaaabcd")]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            assert await history(it, "a", 3) == []
            assert await history(it, "new", 3) == []
        assert not any(task.done() for task in long)
        await ended(*long)


async def test_look_ups_of_one_partition_share_a_reader():
    async with log_lookup() as it:
        asked = [history(it, tenant, 2_000 * number) for number in range(1, 4) for tenant in "abc"]
        async with asyncio.timeout(20):
            assert await asyncio.gather(*asked) == [[]] * 9
        assert sum(reader.turns for reader in it._readers) == 3  # one for each end


async def test_one_tenant_leaves_a_reader_to_others():
    async with log_lookup() as it:
        first = [history(it, "a", ENDLESS, number) for number in range(READERS - 1)]
        await until(lambda: sum(reader.turns for reader in it._readers) == READERS - 1)
        other = history(it, "b", ENDLESS, READERS)
        await until(lambda: sum(reader.turns for reader in it._readers) == READERS)
        await ended(*first, other)


async def test_a_reader_whose_broker_does_not_answer_is_free_when_it_does():
    answers = asyncio.Event()

    class Waiting(SlowReader):
        async def start(self, turn):
            await answers.wait()
            return await super().start(turn)

    async with log_lookup(Waiting) as it:
        asked = [history(it, "a", 300, number) for number in range(2 * READERS)]
        await asyncio.sleep(0.05)
        await ended(*asked[:READERS])
        answers.set()
        async with asyncio.timeout(20):
            assert await asyncio.gather(*asked[READERS:]) == [[]] * READERS


async def test_look_ups_are_bounded_for_a_tenant_and_in_all():
    async with log_lookup() as it:
        tasks = []
        for tenant, status in (("a", 429), ("b", 503)):
            tasks += [history(it, tenant, ENDLESS) for _ in range(MAX_TENANT_LOOKUPS)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as refused:
                await history(it, tenant, 1)
            assert (refused.value.status, refused.value.code) == (status, "busy")
        assert len(tasks) == MAX_LOOKUPS
        await ended(*tasks)
        assert await history(it, "a", 1) == []


async def test_a_look_up_that_takes_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(lookup, "LOOKUP_TIMEOUT_S", 0.05)
    async with log_lookup() as it:
        with pytest.raises(ApiError) as late:
            await history(it, "a", ENDLESS)
        assert late.value.code == "log_unavailable"
