"""Looks are answered within bounds: of time, of tries, of how many at once, and of one tenant's share."""

import asyncio

from services.safety.checker import MAX_PER_TENANT, MAX_WORKERS, Checker
from services.safety.checks import CheckFailed
from services.safety.looks import Broke, Look, Seen, Spot
from tests.unit.safety.world import policy

SPOT = Spot("r", "c", 0, 1)


class Tries:
    """A check that does what it is told, look by look."""

    def __init__(self, does):
        self.does, self.texts = does, []

    async def look(self, text):
        self.texts.append(text)
        return await self.does(text, self.texts.count(text))

    async def close(self):
        pass


class Desk:
    """Puts looks in and takes answers out."""

    def __init__(self, does, **changes):
        self.check = Tries(does)
        self.policy = policy(**changes)
        self.answers = {}
        self.checker = Checker(lambda look: {look.tier: self.check}, self.take)
        self.news = asyncio.Event()

    def put(self, text, tenant="t"):
        look = Look(number=0, tier=1, tenant=tenant, policy=self.policy, start=0, text=text, last=False)
        self.checker.put(look)

    def take(self, look, answer):
        self.answers[look.text] = answer
        self.news.set()

    async def all(self, count):
        async with asyncio.timeout(20):
            while len(self.answers) < count:
                self.news.clear()
                await self.news.wait()
        return self.answers


async def test_each_look_has_its_answer():
    async def look(text, _):
        return (SPOT,) if text == "bad" else ()

    desk = Desk(look)
    for text in ("bad", "good", "fine"):
        desk.put(text)
    assert await desk.all(3) == {"bad": Seen((SPOT,)), "good": Seen(()), "fine": Seen(())}


async def test_a_look_that_breaks_is_tried_again_a_bounded_number_of_times():
    async def look(text, tries):
        if text == "mends" and tries == 3:
            return ()
        raise CheckFailed("rail raised") if text == "mends" else ValueError(text)

    desk = Desk(look)
    desk.put("mends")
    desk.put("secret")
    assert await desk.all(2) == {"mends": Seen(()), "secret": Broke("ValueError")}
    assert desk.check.texts.count("secret") == 3


async def test_a_look_that_hangs_is_unchecked_after_its_time():
    async def look(text, _):
        if text == "hangs":
            await asyncio.sleep(3_600)
        return ()

    desk = Desk(look, timeout_ms="60", retries="1")
    desk.put("hangs")
    desk.put("goes")
    assert await desk.all(2) == {"goes": Seen(()), "hangs": Broke("no answer within 60 ms")}
    assert desk.check.texts.count("hangs") == 2
    desk.put("later")
    assert (await desk.all(3))["later"] == Seen(())


async def test_a_tenants_slow_looks_do_not_take_the_places_of_others():
    gate = asyncio.Event()
    running = 0
    most = 0

    async def look(text, _):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if text.startswith("slow"):
            await gate.wait()
        running -= 1
        return ()

    desk = Desk(look)
    for number in range(50):
        desk.put(f"slow {number}", "greedy")
    for number in range(20):
        desk.put(f"quick {number}", "modest")
    await desk.all(20)
    assert set(desk.answers) == {f"quick {number}" for number in range(20)}
    assert running == MAX_PER_TENANT
    gate.set()
    await desk.all(70)
    assert most <= MAX_WORKERS


async def test_many_tenants_together_stay_within_the_bound():
    gate = asyncio.Event()
    running = 0

    async def look(text, _):
        nonlocal running
        running += 1
        await gate.wait()
        return ()

    desk = Desk(look)
    for number in range(100):
        desk.put(str(number), f"t{number}")
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == MAX_WORKERS
    gate.set()
    await desk.all(100)


async def test_stopping_ends_what_runs_and_answers_nothing():
    async def look(text, _):
        await asyncio.sleep(3_600)

    desk = Desk(look)
    desk.put("one")
    await asyncio.sleep(0)
    await desk.checker.stop()
    assert desk.answers == {}
