"""Runs rails beside each other, each under its deadline; the first that blocks cancels the others."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from services.rails.answers import Answer, RailBroke, Report, report, silent

Rail = Callable[[], Awaitable[Answer]]


async def run_together(rails: Mapping[str, Rail], deadlines_s: Mapping[str, float]) -> list[Report]:
    """How each rail ended, in the order given.

    Args:
        rails: Name -> what to run.
        deadlines_s: Name -> by when, in seconds from now.
    """
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    names = {loop.create_task(_timed(name, rail, began), name=f"rail-{name}"): name for name, rail in rails.items()}
    ended: dict[str, Report] = {}
    pending = set(names)
    try:
        while pending and not _blocked(ended):
            left_s = min(deadlines_s[names[task]] for task in pending) - (time.perf_counter() - began)
            done, pending = await asyncio.wait(pending, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
            ended |= {names[task]: task.result() for task in done}
            if not done:
                now_s = time.perf_counter() - began
                late = {task for task in pending if deadlines_s[names[task]] <= now_s}
                ended |= {names[task]: _late(names[task], deadlines_s[names[task]], began) for task in late}
                _stop(late)
                pending -= late
    finally:
        _stop(pending)
    ended |= {names[task]: silent(names[task], "cancelled", _ms_since(began)) for task in pending}
    return [ended[name] for name in rails]


def _blocked(ended: Mapping[str, Report]) -> bool:
    return any(one.result == "blocked" for one in ended.values())


def _late(name: str, deadline_s: float, began: float) -> Report:
    return silent(name, "timeout", _ms_since(began), f"no answer within {deadline_s * 1_000:.0f} ms")


def _stop(tasks: set[asyncio.Task[Report]]) -> None:
    for task in tasks:
        task.cancel()
    asyncio.gather(*tasks, return_exceptions=True)  # nobody waits for those that are slow to end


async def _timed(name: str, rail: Rail, began: float) -> Report:
    try:
        answer = await rail()
    except RailBroke as error:
        return silent(name, "broke", _ms_since(began), str(error))
    except Exception as error:  # noqa: BLE001 - whatever a rail raises, it did not pass; its text may hold the prompt
        return silent(name, "broke", _ms_since(began), type(error).__name__)
    return report(name, answer, _ms_since(began))


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1_000
