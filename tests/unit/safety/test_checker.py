"""Test the limits of checks: their time, their number of tries, and how many run at once, in total and per tenant."""

import asyncio

from services.policy import FoundSpan
from services.safety.checks.executor import MAX_PER_TENANT, MAX_WORKERS, CheckExecutor, CheckFailed
from services.safety.decide.check_types import CheckRequest, CheckResult, Unchecked
from tests.unit.safety.world import policy

FOUND = FoundSpan("r", "c", 0, 1)


class Tries:
    """A check that calls ``does`` with a text and the number of the try: 1 for the first try with this text."""

    def __init__(self, does):
        self.does, self.texts = does, []

    async def find(self, text):
        self.texts.append(text)
        return await self.does(text, self.texts.count(text))

    async def close(self):
        pass


class Harness:
    """Checks each text that is given to ``put``.

    Args:
        does: The function that checks a text. See ``Tries``.
        changes: New values for settings of the policy.

    Attributes:
        answers: The outcome of the check of each text.
    """

    def __init__(self, does, **changes):
        self.check = Tries(does)
        self.policy = policy(**changes)
        self.answers = {}
        self.executor = CheckExecutor(lambda check: {check.tier: self.check}, self.take)
        self.news = asyncio.Event()

    def put(self, text, tenant="t"):
        check = CheckRequest(number=0, tier=1, tenant=tenant, attempt=1, policy=self.policy, text=text)
        self.executor.put(check)

    def take(self, check, answer):
        self.answers[check.text] = answer
        self.news.set()

    async def all(self, count):
        async with asyncio.timeout(20):
            while len(self.answers) < count:
                self.news.clear()
                await self.news.wait()
        return self.answers


async def test_each_look_has_its_answer():
    async def check(text, _):
        return (FOUND,) if text == "bad" else ()

    harness = Harness(check)
    for text in ("bad", "good", "fine"):
        harness.put(text)
    assert await harness.all(3) == {"bad": CheckResult((FOUND,)), "good": CheckResult(()), "fine": CheckResult(())}


async def test_a_look_that_breaks_is_tried_again_a_bounded_number_of_times():
    async def check(text, tries):
        if text == "mends" and tries == 3:
            return ()
        raise CheckFailed("rail raised") if text == "mends" else ValueError(text)

    harness = Harness(check)
    harness.put("mends")
    harness.put("secret")
    assert await harness.all(2) == {"mends": CheckResult(()), "secret": Unchecked("ValueError")}
    assert harness.check.texts.count("secret") == 3


async def test_a_look_that_hangs_is_unchecked_after_its_time():
    async def check(text, _):
        if text == "hangs":
            await asyncio.sleep(3_600)
        return ()

    harness = Harness(check, timeout_ms="60", retries="1")
    harness.put("hangs")
    harness.put("goes")
    assert await harness.all(2) == {"goes": CheckResult(()), "hangs": Unchecked("no answer within 60 ms")}
    assert harness.check.texts.count("hangs") == 2
    harness.put("later")
    assert (await harness.all(3))["later"] == CheckResult(())


async def test_a_tenants_slow_looks_do_not_take_the_places_of_others():
    gate = asyncio.Event()
    running = 0
    most = 0

    async def check(text, _):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if text.startswith("slow"):
            await gate.wait()
        running -= 1
        return ()

    harness = Harness(check)
    for number in range(50):
        harness.put(f"slow {number}", "greedy")
    for number in range(20):
        harness.put(f"quick {number}", "modest")
    await harness.all(20)
    assert set(harness.answers) == {f"quick {number}" for number in range(20)}
    assert running == MAX_PER_TENANT
    gate.set()
    await harness.all(70)
    assert most <= MAX_WORKERS


async def test_many_tenants_together_stay_within_the_bound():
    gate = asyncio.Event()
    running = 0

    async def check(text, _):
        nonlocal running
        running += 1
        await gate.wait()
        return ()

    harness = Harness(check)
    for number in range(100):
        harness.put(str(number), f"t{number}")
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == MAX_WORKERS
    gate.set()
    await harness.all(100)


async def test_stopping_ends_what_runs_and_answers_nothing():
    async def check(text, _):
        await asyncio.sleep(3_600)

    harness = Harness(check)
    harness.put("one")
    await asyncio.sleep(0)
    await harness.executor.stop()
    assert harness.answers == {}


async def test_a_look_whose_own_work_is_cancelled_is_unchecked():
    async def check(text, _):
        if text == "cancelled":
            work = asyncio.get_running_loop().create_future()
            work.cancel()
            await work
        return ()

    harness = Harness(check, retries="1")
    harness.put("cancelled")
    harness.put("goes")
    assert await harness.all(2) == {"goes": CheckResult(()), "cancelled": Unchecked("CancelledError")}
    assert harness.check.texts.count("cancelled") == 2


async def test_an_error_at_the_time_limit_does_not_end_the_looks_after_it():
    async def check(text, tries):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            if tries == 1:
                raise ConnectionError from None
            raise

    harness = Harness(check, timeout_ms="60", retries="1")
    harness.put("mixed")
    assert await harness.all(1) == {"mixed": Unchecked("no answer within 60 ms")}
