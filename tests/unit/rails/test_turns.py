"""A text made to be dear takes its own tenant's turns, not the others'. Counted in turns and work, never in time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.policy.matching.scanner import Scanner
from services.rails.patterns import PatternRail
from services.rails.rail import PASSED
from services.rails.turns import PIECE_CHARS, SLICE_WORK, Turns
from tests.unit.rails.world import policy, request

DEAR = ("sk-" * 3_000)[:8_000]
"""Every third character begins what may be a key, and each beginning is weighed with every character after it."""

MOST_OPEN = 211
"""The longest key; no more matches of it are open at once."""


@pytest.fixture
def slices(monkeypatch):
    """The work of each uninterrupted stretch, in look-ups: (tenant's text, work)."""
    done, feed = [], Scanner.feed

    def counted(scanner, text):
        before = scanner.work
        found = feed(scanner, text)
        task = asyncio.current_task()
        turn = (task, loops[0])
        if not done or done[-1][0] != turn:
            done.append([turn, 0])
        done[-1][1] += len(text) + scanner.work - before
        return found

    loops = [0]

    async def count_turns():
        while True:
            loops[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Scanner, "feed", counted)
    return done, count_turns


async def test_dear_text_is_read_in_short_slices(slices):
    done, count_turns = slices
    counting = asyncio.create_task(count_turns())
    rail = PatternRail(policy(), Turns(), pii=False)
    assert await rail.evaluate("much", request(DEAR).messages) == PASSED
    counting.cancel()
    assert max(work for _, work in done) <= SLICE_WORK + PIECE_CHARS * 4 * MOST_OPEN


async def test_short_prompt_does_not_wait_for_a_flood_of_dear_ones():
    turns = Turns()
    rail = PatternRail(policy(), turns, pii=False)
    flood = [asyncio.create_task(rail.evaluate("much", request(DEAR).messages)) for _ in range(40)]
    await asyncio.sleep(0)
    little = asyncio.create_task(rail.evaluate("little", request().messages))
    for _ in range(16):
        await asyncio.sleep(0)
    assert little.done()
    assert not any(task.done() for task in flood)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert await asyncio.wait_for(rail.evaluate("much", request().messages), 5) == PASSED, "no turn was lost"


async def test_batch_requests_have_a_turn_when_no_interactive_one_waits():
    turns, order = Turns(), []

    async def work(name, *, batch):
        async with turns.turn(name, batch=batch):
            order.append(name)

    await asyncio.gather(
        *(work(f"batch-{n}", batch=True) for n in range(3)), work("a", batch=False), work("b", batch=False)
    )
    assert order == ["a", "b", "batch-0", "batch-1", "batch-2"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3), st.booleans()), max_size=30),
    st.integers(1, 3),
)
def test_whatever_comes_each_has_its_turn_and_batch_when_nobody_else_waits(arrivals, most):
    """Each arrival comes some rounds of the loop after the last, holds its turn for a while, and may be cancelled."""

    async def run():
        turns, holds, had = LookedAt(most), set(), []

        async def work(number, tenant, *, batch):
            async with turns.turn(tenant, batch=batch):
                holds.add(number)
                try:
                    assert len(holds) <= most
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    had.append(number)
                finally:
                    holds.discard(number)

        tasks = []
        for number, (tenant, batch, rounds, cancelled) in enumerate(arrivals):
            tasks.append(asyncio.create_task(work(number, tenant, batch=batch)))
            for _ in range(rounds):
                await asyncio.sleep(0)
            if cancelled:
                tasks[-1].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [each for each in ended if isinstance(each, AssertionError)]
        kept = {number for number, (*_, cancelled) in enumerate(arrivals) if not cancelled}
        assert kept <= set(had)
        assert turns._free == most
        assert turns.wrong == []

    asyncio.run(run())


class LookedAt(Turns):
    """Looks, whenever turns were handed out, whether what waits does so because none is free."""

    def __init__(self, most):
        super().__init__(most)
        self.wrong = []

    def _hand_out(self):
        batch_before = len(self._waiting_batch)
        super()._hand_out()
        interactive = [mine for queue in self._waiting._by_tenant.values() for mine in queue if not mine.done()]
        if len(self._waiting_batch) < batch_before and interactive:
            self.wrong.append("a batch request had a turn that an interactive one waits for")
        if self._free and (len(self._waiting) or len(self._waiting_batch)):
            self.wrong.append("a turn is free, and somebody waits")
