"""Test that each request is run only once while generators join, leave and are paused."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest

from schemas.stream import Finished, Started
from tests.integration.generator.lab import GeneratorLab

SESSION_MS = "20000"
"""Session timeout of the consumer group in milliseconds. It is longer than the pauses, because the group would expel a
generator that pauses for longer, and another generator might then run the same requests."""


class BusyLab(GeneratorLab):
    """A lab of generators with many partitions and many short requests.

    Attributes:
        asked: The ids of all requests so far.
    """

    partitions = 8
    pause_s = 0.05
    settings = {  # noqa: RUF012
        "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": SESSION_MS, "RAILBUS_ENGINE": "simulated", "RAILBUS_SIM_TIME_SCALE": "0.2",
    }  # fmt: skip

    def __init__(self, broker):
        super().__init__(broker)
        self.asked = []

    @asynccontextmanager
    async def under_load(self, gap_s=0.01):
        """Write requests while the ``with`` block runs, one every ``gap_s`` seconds. Then wait for every answer."""

        async def ask():
            while True:
                self.asked.append(await self.ask("simulated-n2"))
                await asyncio.sleep(gap_s)

        asking = asyncio.create_task(ask())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await self.all_answered()

    async def all_answered(self):
        await self.until(lambda: set(self.asked) <= {end.request_id for end in self.written(Finished)}, within_s=120)

    def taken_twice(self):
        """Return each attempt that has more than one run, as a pair of the request's id and the attempt's number."""
        runs = {}
        for event in self.written(Started):
            runs.setdefault((event.request_id, event.attempt), set()).add(event.run)
        return [each for each, names in runs.items() if len(names) > 1]


@pytest.fixture
async def busy():
    async with BusyLab.opened() as lab:
        yield lab


async def test_a_rebalance_that_lasts_takes_nothing_twice(busy):
    """While a rebalance waits for a paused generator, the other generators go on, and no request is run twice."""
    first, second = await busy.generator(), await busy.generator()
    for _ in range(2):
        async with busy.under_load():
            second.signal(signal.SIGSTOP)
            joining = asyncio.create_task(busy.generator())
            await asyncio.sleep(3)
            second.signal(signal.SIGCONT)
            third = await joining
            await asyncio.sleep(1)
            assert await third.stop() == 0
    assert first.running
    assert busy.taken_twice() == []


async def test_each_is_restarted_in_turn_and_nothing_is_taken_twice_or_fails(busy):
    members = [await busy.generator() for _ in range(2)]
    async with busy.under_load():
        for turn in (0, 1, 0, 1):
            assert await members[turn].stop() == 0
            members[turn] = await busy.generator()
            await asyncio.sleep(0.5)
    assert busy.taken_twice() == []
    assert all(len(busy.check(each)) == 1 for each in busy.asked)


async def test_whoever_was_paused_begins_nothing_that_another_has_taken():
    async with BusyLab.opened() as busy:
        short = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1500", "RAILBUS_GENERATOR_SLOTS": "1"}
        paused = await busy.generator(**short, RAILBUS_SIM_TIME_SCALE="1")
        busy.asked = [await busy.ask("simulated-n5") for _ in range(120)]
        await busy.until(lambda: len(busy.written(Finished)) >= 45)
        paused.signal(signal.SIGSTOP)
        await asyncio.sleep(3)  # the test reads what the paused one had written, though the broker may be slow
        begun = list(dict.fromkeys(event.request_id for event in busy.written(Started)))
        await busy.generator(RAILBUS_KAFKA_SESSION_TIMEOUT_MS="1500")
        await busy.until(lambda: set(busy.asked) - set(begun) <= {end.request_id for end in busy.written(Finished)})
        paused.signal(signal.SIGCONT)
        await busy.all_answered()
        await asyncio.sleep(1)
    twice = {request_id for request_id, attempt in busy.taken_twice()}
    assert len(twice - set(begun)) <= 1  # what it was about to begin, it began afterwards
    assert not twice & set(begun[: len(begun) // 3])  # these were committed; perhaps the newest were not
