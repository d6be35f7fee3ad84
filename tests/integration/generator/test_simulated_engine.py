"""Tests of the engine ``simulated`` on a real event loop: many answers at once, aborts, scripted failures, death."""

import asyncio

import pytest

from schemas.requests import Message, Sampling
from services.generator.engines import make
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job

PATIENCE_S = 30


@pytest.fixture
async def engine():
    it = make("simulated", {"RAILBUS_SIM_TIME_SCALE": "0.1", "RAILBUS_SIM_BATCH": "2000"})
    await it.start()
    yield it
    await it.close()


def job(number=0, script="", **sampling):
    return Job(
        request_id=str(number),
        run="x",
        model=f"simulated-{script}" if script else "simulated",
        messages=(Message(role="user", content="Tell me about rivers."),),
        sampling=Sampling(**sampling),
    )


async def answer(it, asked):
    async with asyncio.timeout(PATIENCE_S):
        return [item async for item in it.generate(asked)]


async def test_the_same_request_gets_the_same_answer(engine):
    def said(items):
        return "".join(item.text for item in items[:-1])

    first, again, other = [said(await answer(engine, job(n, "n30"))) for n in (1, 1, 2)]
    assert first == again != other
    assert len(first.split()) == 30
    assert said(await answer(engine, job(1, "n30", seed=4))) != first


async def test_a_thousand_at_once(engine):
    answers = await asyncio.gather(*(answer(engine, job(n, "n20")) for n in range(1_000)))
    assert all(isinstance(items[-1], GenerationResult) and items[-1].usage.completion_tokens == 20 for items in answers)
    assert engine.stats().running == engine.stats().waiting == 0


async def test_an_abort_frees_the_slot_at_once(engine):
    items = engine.generate(job(1, "stall3"))
    for _ in range(3):
        assert isinstance(await anext(items), EngineStep)
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0.01)
    assert engine.stats().running == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert engine.stats().running == 0
    assert isinstance((await answer(engine, job(2)))[-1], GenerationResult), "the clock goes on"


async def test_an_abort_lets_the_next_one_begin():
    it = make("simulated", {"RAILBUS_SIM_TIME_SCALE": "0.1", "RAILBUS_SIM_BATCH": "1"})
    await it.start()
    silent = asyncio.ensure_future(answer(it, job(1, "mute")))
    next_one = asyncio.ensure_future(answer(it, job(2, "n5")))
    await asyncio.sleep(0.1)
    assert (it.stats().running, it.stats().waiting) == (1, 1)
    silent.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance((await next_one)[-1], GenerationResult)
    await it.close()


async def test_max_tokens_cuts(engine):
    items = await answer(engine, job(1, "n50", max_tokens=7))
    assert items[-1].finish_reason == "length"
    assert items[-1].usage.completion_tokens == 7


@pytest.mark.parametrize(
    ("script", "error_class"), [("err503", "unavailable"), ("err429", "overloaded"), ("die2", "unavailable")]
)
async def test_scripts_that_fail(engine, script, error_class):
    with pytest.raises(EngineError) as caught:
        await answer(engine, job(1, script))
    assert caught.value.error_class == error_class


async def test_death_ends_everything(engine):
    others = [asyncio.ensure_future(answer(engine, job(n, "stall1"))) for n in range(3)]
    dying = asyncio.ensure_future(answer(engine, job(9, "dead4")))
    done, _ = await asyncio.wait([*others, dying], timeout=PATIENCE_S)
    assert len(done) == 4
    assert {task.exception().error_class for task in done} == {"engine_dead"}
    with pytest.raises(EngineError):
        await answer(engine, job(10))


async def test_models(engine):
    assert engine.resolve("default") == engine.resolve("simulated") == "simulated"
    assert engine.resolve("simulated-n5-die2") == "simulated-n5-die2"
    for unknown in ("gpt-9", "simulated-fly", "simulatedn5"):
        with pytest.raises(EngineError, match="served is 'simulated'") as caught:
            engine.resolve(unknown)
        assert (caught.value.error_class, caught.value.retryable) == ("bad_request", False)
        assert caught.value.param == "model"


async def test_a_share_of_the_requests_is_scripted():
    it = make(
        "simulated",
        {"RAILBUS_SIM_SCRIPT": "err503", "RAILBUS_SIM_SCRIPT_RATE": "0.5", "RAILBUS_SIM_TIME_SCALE": "0.01"},
    )
    await it.start()
    results = await asyncio.gather(*(answer(it, job(n)) for n in range(100)), return_exceptions=True)
    await it.close()
    failed = sum(isinstance(result, EngineError) for result in results)
    assert 30 < failed < 70


async def test_a_timer_that_is_early_makes_no_phase_negative(monkeypatch):
    """No measured time is negative if timers fire early, as with uvloop, which rounds timers to whole milliseconds."""
    later = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: later(0))
    engine = make("simulated", {"RAILBUS_SIM_TIME_SCALE": "0.1", "RAILBUS_SIM_BATCH": "4"})
    await engine.start()

    answers = await asyncio.gather(*(answer(engine, job(n, f"n{n % 7 + 1}")) for n in range(50)))
    await engine.close()

    timings = [items[-1].timings for items in answers]
    assert min(min(each.queue_ms, each.prefill_ms, each.decode_ms) for each in timings) >= 0
