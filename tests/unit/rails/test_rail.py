"""Test that rails run in parallel, that the first one to block cancels the others, and that deadlines are kept."""

import asyncio
import time

from services.rails.rail import PASSED, RailAnswer, RailFailed, run_rails

BLOCKED = RailAnswer(reason="secret")
PATIENT_S = 30.0


def says(answer, after=None):
    async def rail():
        if after is not None:
            await after.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    return rail


def never(cancelled):
    async def rail():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    return rail


async def run_all(rails, deadline_s):
    return await run_rails(rails, dict.fromkeys(rails, deadline_s))


def results(reports):
    return [(one.rail, one.result, one.detail) for one in reports]


async def test_they_run_at_the_same_time_and_are_reported_in_order():
    second = asyncio.Event()

    async def opens():
        second.set()
        return PASSED

    reports = await run_all({"a": says(PASSED, after=second), "b": opens}, PATIENT_S)
    assert results(reports) == [("a", "passed", ""), ("b", "passed", "")]
    assert await run_all({}, PATIENT_S) == []


async def test_the_first_that_blocks_cancels_the_others():
    cancelled = []
    reports = await run_all({"slow": never(cancelled), "fast": says(BLOCKED)}, PATIENT_S)
    assert results(reports) == [("slow", "cancelled", ""), ("fast", "blocked", "")]
    await asyncio.sleep(0)
    assert cancelled == [True]


async def test_one_that_breaks_cancels_nobody_and_its_message_is_not_told():
    rails = {
        "a": says(ValueError("the prompt was: hello")),
        "b": says(RailFailed("no model here")),
        "c": says(PASSED),
    }
    reports = await run_all(rails, PATIENT_S)
    assert results(reports) == [("a", "broke", "ValueError"), ("b", "broke", "no model here"), ("c", "passed", "")]


async def test_what_is_late_timed_out_and_is_stopped():
    cancelled = []
    for deadline_s in (0.02, 0.0, -1.0):
        reports = await run_all({"a": never(cancelled)}, deadline_s)
        assert results(reports) == [("a", "timeout", f"no answer within {deadline_s * 1_000:.0f} ms")]
    await asyncio.sleep(0)
    assert cancelled
    quick, late = await run_all({"quick": says(PASSED), "late": never(cancelled)}, 0.02)
    assert (quick.result, late.result) == ("passed", "timeout")


async def test_whoever_waits_may_give_up():
    cancelled = []
    waiting = asyncio.create_task(run_all({"a": never(cancelled)}, PATIENT_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert cancelled == [True]


async def test_one_whose_own_work_is_cancelled_breaks():
    async def stopped():
        raise asyncio.CancelledError

    reports = await run_all({"a": stopped, "b": says(PASSED)}, PATIENT_S)
    assert results(reports) == [("a", "broke", "CancelledError"), ("b", "passed", "")]


async def test_each_has_its_own_deadline_and_the_others_go_on():
    cancelled, later, stopped = [], asyncio.Event(), asyncio.Event()

    async def stops():
        try:
            await never(cancelled)()
        finally:
            stopped.set()

    async def patient():
        await later.wait()
        return BLOCKED

    running = asyncio.create_task(run_rails({"late": stops, "patient": patient}, {"late": 0.01, "patient": PATIENT_S}))
    await stopped.wait()
    later.set()
    assert results(await running) == [("late", "timeout", "no answer within 10 ms"), ("patient", "blocked", "")]


async def test_an_answer_after_the_deadline_is_none():
    async def blocks():
        time.sleep(0.05)  # noqa: ASYNC251 - as a library that computes
        return PASSED

    async def blocks_and_refuses():
        time.sleep(0.05)  # noqa: ASYNC251
        return BLOCKED

    (late,) = await run_all({"admission": blocks}, 0.01)
    assert (late.result, late.answer, late.detail) == ("timeout", None, "no answer within 10 ms")
    (refused,) = await run_all({"admission": blocks_and_refuses}, 0.01)
    assert refused.result == "blocked", "a refusal is never too late"
