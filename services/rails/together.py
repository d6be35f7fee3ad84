"""Runs rails beside each other under one deadline; the first that blocks cancels the others."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from services.rails.answers import Answer, RailBroke, Report, report, silent

Rail = Callable[[], Awaitable[Answer]]


async def run_together(rails: Mapping[str, Rail], deadline_s: float) -> list[Report]:
    """How each rail ended, in the order given.

    Args:
        rails: Name -> what to run.
        deadline_s: For all of them together, in seconds from now.
    """
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    names = {loop.create_task(_timed(name, rail, began), name=f"rail-{name}"): name for name, rail in rails.items()}
    ended: dict[str, Report] = {}
    pending = set(names)
    blocked = False
    try:
        while pending and not blocked:
            left_s = deadline_s - (time.perf_counter() - began)
            done, pending = await asyncio.wait(pending, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
            ended |= {names[task]: task.result() for task in done}
            blocked = any(one.result == "blocked" for one in ended.values())
            if not done:
                break
    finally:
        for task in pending:
            task.cancel()
        asyncio.gather(*pending, return_exceptions=True)  # nobody waits for those that are slow to end
    ms = _ms_since(began)
    detail = "" if blocked else f"no answer within {deadline_s * 1_000:.0f} ms"
    for task in pending:
        ended[names[task]] = silent(names[task], "cancelled" if blocked else "timeout", ms, detail)
    return [ended[name] for name in rails]


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
