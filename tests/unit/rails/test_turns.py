"""Test that a tenant whose texts take long to check delays its own requests, and not those of other tenants."""

import asyncio
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.policy.matching.scanner import Scanner
from services.rails.patterns import PatternRail
from services.rails.rail import PASSED
from services.rails.turns import (
    LOOK_AGAIN_S,
    PIECE_CHARS,
    PREFERENCE_S,
    RECENT_S,
    SLICE_WORK,
    ActiveRequests,
    TenantShares,
    Turns,
)
from tests.unit.rails.world import policy, request

DEAR = ("sk-" * 3_000)[:8_000]
"""A text that is expensive to match. A secret key may begin at every third character, and each of these beginnings is
followed through the characters after it.
"""

MOST_OPEN = 211
"""Length of the longest secret key, in characters. At most this number of possible keys are followed at once."""


@pytest.fixture
def slices(monkeypatch):
    """Measure how much work the matcher does for each task in each iteration of the event loop.

    Return a list of measurements, and the coroutine function ``count_turns``, which counts the iterations. The test
    must run ``count_turns()`` as a task.

    A measurement is ``[(task, iteration), work]``. The unit of work is one look-up in the matcher's table.
    """
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
@example([("a", False, 0, False)] * 3 + [("b", False, 0, False), ("b", True, 0, False)], 2)
def test_whatever_comes_each_has_its_turn_and_batch_when_nobody_else_waits(arrivals, most):
    """Every request that is not cancelled gets a turn. Interactive requests come before batch requests.

    While other tenants are active, no tenant may have all turns at once, unless ``most`` is 1.

    Each item of ``arrivals`` is a request: its tenant, whether it is a batch request, how many iterations of the event
    loop the test waits before it sends the next request, and whether the test cancels this request after the wait.
    ``most`` is the maximum number of turns at the same time.
    """

    async def run():
        turns, holds, had = LookedAt(most), {}, []

        async def work(number, tenant, *, batch):
            async with turns.turn(tenant, batch=batch) as place:
                assert place not in holds.values()
                holds[number] = place
                try:
                    assert place in range(most)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    had.append(number)
                finally:
                    del holds[number]

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
        assert turns._free == list(range(most))
        assert turns.wrong == []

    asyncio.run(run())


class LookedAt(Turns):
    """``Turns`` that checks how it hands out turns, and notes mistakes in ``wrong``.

    It is a mistake if a turn stays free although a waiting request may have it, or if a batch request gets a turn
    that a waiting interactive request may have.
    """

    def __init__(self, most):
        super().__init__(most)
        self.wrong = []

    def _hand_out(self):
        batch_before = len(self._waiting_batch)
        super()._hand_out()
        full = {name for name, count in self._held.items() if count >= self._places - 1 > 0}
        last_is_kept = {name for name in full if self._shares.has_others(name, time.perf_counter())}
        interactive = [
            mine for name, queue in self._waiting._by_tenant.items() if name not in last_is_kept
            for mine in queue if not mine.done()
        ]  # fmt: skip
        if len(self._waiting_batch) < batch_before and interactive:
            self.wrong.append("a batch request had a turn that an interactive one waits for")
        if self._free and any(
            name not in full for name in (*self._waiting._by_tenant, *self._waiting_batch._by_tenant)
        ):
            self.wrong.append("a turn is free, and somebody waits who may have it")


@pytest.mark.parametrize("places", [2, 3])
async def test_one_place_is_free_for_others_while_a_tenant_floods(places):
    turns, flooding, stopped, ended = Turns(places), [], asyncio.Event(), 0
    async with turns.turn("little"):  # somebody else is there
        pass

    async def flood():
        nonlocal ended
        while not stopped.is_set():
            async with turns.turn("much") as place:
                flooding.append(place)
                assert len(flooding) < places
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                flooding.remove(place)
                ended += 1

    tasks = [asyncio.create_task(flood()) for _ in range(8)]
    for _ in range(20):
        before = ended
        async with turns.turn("little") as place:
            assert place not in flooding
            assert ended <= before + 2 * places, "it did not wait for the work of others"
        await asyncio.sleep(0)
    stopped.set()
    await asyncio.gather(*tasks)
    assert ended > 20


def test_who_had_most_leaves_the_first_place():
    shares = TenantShares(0.0)
    shares.had("little", 0.01, 1.0)
    shares.had("much", 0.2, 1.2)
    assert shares.had_most("much", 1.2)
    assert not shares.had_most("little", 1.2)
    assert not shares.had_most("new", 1.2)
    assert not shares.had_most("much", 9.0)


async def test_tenant_that_had_much_rests_and_is_served_all_the_same():
    turns = Turns(credit_s=0.0)
    for tenant in ("little", "much"):
        async with turns.turn(tenant):
            spin(0.003)
    waiting, loops = asyncio.create_task(one_turn(turns, "much")), 0
    while not waiting.done():
        loops += 1
        await asyncio.sleep(0)
    assert loops > 20, "the event loop was free for others"


@pytest.mark.parametrize("places", [1, 3])
async def test_tenant_beyond_its_share_gives_way_to_an_active_request(places, monkeypatch):
    monkeypatch.setattr("services.rails.turns.PREFERENCE_S", 60.0)
    active = ActiveRequests()
    turns = Turns(places, active=active, credit_s=60.0)
    spend(turns, "much", 10.0)
    with active.request("little"):
        waiting = asyncio.create_task(one_turn(turns, "much"))
        await asyncio.wait_for(one_turn(turns, "little"), 5)
        await asyncio.sleep(10 * LOOK_AGAIN_S)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 5)


async def test_request_that_waits_for_something_else_loses_its_preference():
    active = ActiveRequests()
    turns = Turns(active=active, credit_s=60.0)
    spend(turns, "much", 10.0)
    begun_s = time.perf_counter()
    with active.request("little"):
        await asyncio.wait_for(one_turn(turns, "much"), 5)
        assert time.perf_counter() - begun_s >= PREFERENCE_S * 0.9
    with active.request("little"):
        assert active.has_other({"much"})
    assert not active.has_other(())


async def test_nobody_gives_way_to_a_tenant_beyond_its_share(monkeypatch):
    monkeypatch.setattr("services.rails.turns.PREFERENCE_S", 60.0)
    active = ActiveRequests()
    turns = Turns(3, active=active, credit_s=60.0)
    spend(turns, "little", 10.0)
    spend(turns, "much", 20.0)
    with active.request("little"):
        await asyncio.wait_for(one_turn(turns, "much"), 5)


def spend(turns, tenant, seconds):
    turns.charge(tenant, time.perf_counter() - seconds)


async def one_turn(turns, tenant):
    async with turns.turn(tenant):
        pass


def spin(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


stretches = st.lists(st.floats(0.0001, 0.05), min_size=1, max_size=200)


@given(stretches, st.sampled_from([0.0, 0.2, 0.5]))
def test_who_always_wants_more_has_no_more_than_half_and_the_credit(lengths, credit_s):
    shares, now_s, had_s = TenantShares(credit_s), 0.0, 0.0
    shares.had("little", 0.0, now_s)
    for length_s in lengths:
        assert "little" not in shares.resting(now_s)
        now_s = max(shares.resting(now_s).get("much", now_s), now_s) + length_s
        had_s += length_s
        shares.had("much", length_s, now_s)
        shares.had("little", 0.0, now_s)
        assert had_s <= now_s / 2 + credit_s + length_s + 1e-9


@given(stretches)
def test_who_is_alone_never_rests(lengths):
    shares, now_s = TenantShares(0.0), 0.0
    for length_s in lengths:
        now_s += length_s
        shares.had("much", length_s, now_s)
        assert shares.resting(now_s) == {}


@given(stretches, st.sampled_from([0.0, 0.5]))
def test_who_was_alone_does_not_pay_for_it_when_another_comes(lengths, credit_s):
    shares, now_s = TenantShares(credit_s), 0.0
    for length_s in lengths * 10:
        now_s += length_s
        shares.had("much", length_s, now_s)
    shares.had("little", 0.001, now_s)
    assert shares.resting(now_s).get("much", now_s) <= now_s + 2 * lengths[-1]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 0.05), st.floats(0, 3)), max_size=100))
def test_what_is_remembered_is_bounded_by_who_was_there_lately(turns):
    shares, now_s, at_s = TenantShares(0.0), 0.0, {}
    for tenant, took_s, pause_s in turns:
        now_s += took_s + pause_s
        shares.had(tenant, took_s, now_s)
        at_s[tenant] = now_s
    assert shares._recent_s == {tenant: at for tenant, at in at_s.items() if at > now_s - RECENT_S}
    shares.resting(now_s + 100)
    assert shares._recent_s == shares._even_at_s == {}
