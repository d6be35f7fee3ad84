"""Test that all answers are completed although one of two generators is killed, stopped or replaced."""

import asyncio

import pytest
from msgspec.structs import replace

from schemas.requests import Deadlines
from schemas.stream import Closed, Cutover, Finished, Started
from tests.integration.generator.lab import GeneratorLab, make_request

ANSWERS = 16
DEADLINES = Deadlines(verdict_ms=60_000, ttft_ms=30_000, stall_ms=10_000, total_ms=120_000)
"""Deadlines so long that a generator that a busy machine delays for seconds does not count as dead."""

SLOW = {
    "RAILBUS_SIM_TIME_SCALE": "4", "RAILBUS_SIM_DRAFT": "none", "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "6000",
}  # fmt: skip
"""Settings with which long answers last for seconds, so that a test can act in the middle of them."""


@pytest.fixture
async def lab():
    async with GeneratorLab.opened() as lab:
        await lab.start("services.router").ready()
        yield lab


async def ask(lab, count, model="simulated-n120", **changes):
    requests = [make_request(model, **changes) for _ in range(count)]
    await lab.send(*(replace(request, deadlines=DEADLINES) for request in requests))
    return [request.request_id for request in requests]


async def all_closed(lab, asked):
    await lab.until(lambda: all(lab.written(Closed, each) for each in asked), within_s=150)
    return {each: lab.written(Closed, each)[0].outcome for each in asked}


def by_worker(lab, asked):
    """Return a dict from each worker to the ids of the requests whose attempt 1 this worker has begun."""
    began = {}
    for each in asked:
        for event in lab.written(Started, each):
            if event.attempt == 1:
                began.setdefault(event.source, []).append(each)
    return began


def check_screens(lab, asked):
    """Check that a reader of each request sees the whole text of exactly one run."""
    for each in asked:
        screen = lab.screen(each)
        texts = {
            run: "".join(c.text for c in lab.chunks(each) if c.run == run) for run in {c.run for c in lab.chunks(each)}
        }
        assert screen.visible == texts[screen.voice.run]


async def test_killing_one_of_two_restarts_its_answers_and_nothing_else(lab):
    first = await lab.generator(**SLOW)
    await lab.generator(**SLOW)
    asked = await ask(lab, ANSWERS, "simulated-n200")
    await lab.until(lambda: all(lab.chunks(each) for each in asked))
    began = by_worker(lab, asked)
    assert len(began) == 2, "they share the partitions"
    alive = await lab.ask("simulated-n1")
    first.kill()
    outcomes = await all_closed(lab, asked)
    assert set(outcomes.values()) == {"completed"}
    check_screens(lab, asked)
    answered = {each: lab.written(Finished, each)[-1].source for each in asked}
    (survivor,) = began.keys() & set(answered.values())
    for worker, requests in began.items():
        cut = [each for each in requests if lab.written(Cutover, each)]
        if worker == survivor:
            assert cut == [], "its own answers notice nothing"
        else:
            assert cut, "the answers of the killed one begin again"
    for event in lab.written(Cutover):
        assert (event.trigger, event.target) in {("stall", "generator"), ("ttft", "generator")}
    await all_closed(lab, [alive])


async def test_stop_of_one_of_two_costs_nothing(lab):
    """When one generator is told to stop, it completes its running answers. The other one answers the waiting requests.

    The only cutovers that may happen are those for a late first token.
    """
    first = await lab.generator(**SLOW, RAILBUS_GENERATOR_SLOTS="4")
    await lab.generator(**SLOW, RAILBUS_GENERATOR_SLOTS="4")
    asked = await ask(lab, ANSWERS, "simulated-n60")
    await lab.until(lambda: sum(bool(lab.chunks(each)) for each in asked) >= 6)
    assert await first.stop() == 0
    assert set((await all_closed(lab, asked)).values()) == {"completed"}
    check_screens(lab, asked)
    assert not [event for event in lab.written(Cutover) if event.trigger != "ttft"]


async def test_each_restarted_in_turn_fails_no_answer(lab):
    generators = [await lab.generator(**SLOW), await lab.generator(**SLOW)]
    asked = []
    loading = True

    async def load():
        while loading:
            asked.extend(await ask(lab, 1, "simulated-n40"))
            await asyncio.sleep(0.05)

    task = asyncio.create_task(load())
    for index in (0, 1, 0, 1):
        await asyncio.sleep(0.5)
        assert await generators[index].stop() == 0
        generators[index] = await lab.generator(**SLOW)
    loading = False
    await task
    outcomes = await all_closed(lab, asked)
    assert set(outcomes.values()) == {"completed"}
    check_screens(lab, asked)


async def test_answer_that_cannot_finish_in_time_is_answered_by_the_other(lab):
    first = await lab.generator(**SLOW, RAILBUS_GENERATOR_DRAIN_MS="100")
    (asked,) = await ask(lab, 1, "simulated-n200")
    await lab.until(lambda: len(lab.chunks(asked)) > 2)
    second = asyncio.create_task(lab.generator(**SLOW))
    assert await first.stop() == 0
    await second
    assert (await all_closed(lab, [asked]))[asked] == "completed"
    (cutover,) = lab.written(Cutover)
    assert (cutover.trigger, cutover.target) == ("hard_error", "generator")
    check_screens(lab, [asked])
