"""The answers of input rails, and ``run_rails``, which runs them concurrently, each with its deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, get_args

from schemas.requests import Egress
from schemas.stream import RailResult


class Edit(NamedTuple):
    """A span of the prompt that is masked.

    Attributes:
        message: Index of the message.
        start: First code point of the span in the message's content.
        end: One past the last.
        text: The replacement.
    """

    message: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RailAnswer:
    """The answer of a rail.

    Attributes:
        reason: Key of the policy's refusal texts if the prompt is refused, else None.
        edits: Spans to mask.
        egress: ``forbidden`` keeps the prompt on the premises.
        detail: A text for the verdict. It must not contain prompt text.
    """

    reason: str | None = None
    edits: tuple[Edit, ...] = ()
    egress: Egress = "allowed"
    detail: str = ""


PASSED = RailAnswer()

Rail = Callable[[], Awaitable[RailAnswer]]


class RailFailed(Exception):
    """A rail that gave no answer. The message must not contain user text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RailReport:
    """The report of a rail that ended.

    Attributes:
        rail: Its name.
        result: How it ended.
        ms: How long it ran, in milliseconds.
        answer: Its answer; None if it gave none.
        detail: A text for the verdict. It must not contain prompt text.
    """

    rail: str
    result: RailResult
    ms: float
    answer: RailAnswer | None = None
    detail: str = ""


def report(rail: str, answer: RailAnswer, ms: float) -> RailReport:
    """Return the report of a rail that answered."""
    result: RailResult = "blocked" if answer.reason is not None else "masked" if answer.edits else "passed"
    return RailReport(rail=rail, result=result, ms=ms, answer=answer, detail=answer.detail)


def no_answer(rail: str, result: RailResult, ms: float, detail: str = "") -> RailReport:
    """Return the report of a rail that gave no answer."""
    if result not in get_args(RailResult)[3:]:
        raise ValueError(f"{result} needs an answer")
    return RailReport(rail=rail, result=result, ms=ms, detail=detail)


async def run_rails(rails: Mapping[str, Rail], deadlines_s: Mapping[str, float]) -> list[RailReport]:
    """Run rails concurrently. The first that blocks cancels the others. Return the reports in the order of ``rails``.

    Args:
        rails: The rails by name.
        deadlines_s: The rails' deadlines by name, in seconds from now.
    """
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    names = {loop.create_task(_timed(name, rail, began), name=f"rail-{name}"): name for name, rail in rails.items()}
    pending, done = set(names), list[asyncio.Task[RailReport]]()
    ended: dict[str, RailReport] = {}
    changed = asyncio.Event()

    def on_end(task: asyncio.Task[RailReport]) -> None:
        """Record that a rail ended. Wake the waiter if it was the last to end, blocked the prompt or was cancelled."""
        if task in pending:
            pending.discard(task)
            done.append(task)
            if not pending or task.cancelled() or task.result().result == "blocked":
                changed.set()

    for task in names:
        task.add_done_callback(on_end)
    try:
        while pending and not _blocked(ended):
            left_s = min(deadlines_s[names[task]] for task in pending) - (time.perf_counter() - began)
            timer = loop.call_later(max(left_s, 0), changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
            changed.clear()
            ended |= {names[task]: _in_time(task.result(), deadlines_s[names[task]]) for task in done}
            done.clear()
            if pending and not _blocked(ended):
                now_s = time.perf_counter() - began
                late = {task for task in pending if deadlines_s[names[task]] <= now_s}
                ended |= {names[task]: _late(names[task], deadlines_s[names[task]], began) for task in late}
                pending -= late
                _stop(late)
    finally:
        _stop(pending)
    ended |= {names[task]: no_answer(names[task], "cancelled", _ms_since(began)) for task in pending}
    return [ended[name] for name in rails]


def _blocked(ended: Mapping[str, RailReport]) -> bool:
    return any(one.result == "blocked" for one in ended.values())


def _in_time(ended: RailReport, deadline_s: float) -> RailReport:
    """Return the report, or a timeout if the rail ended after its deadline.

    A rail that blocks the event loop ends late without a timeout, because the timeout needs the event loop, too.
    """
    if ended.result == "blocked" or ended.ms <= deadline_s * 1_000:
        return ended
    return no_answer(ended.rail, "timeout", ended.ms, f"no answer within {deadline_s * 1_000:.0f} ms")


def _late(name: str, deadline_s: float, began: float) -> RailReport:
    return no_answer(name, "timeout", _ms_since(began), f"no answer within {deadline_s * 1_000:.0f} ms")


def _stop(tasks: set[asyncio.Task[RailReport]]) -> None:
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    asyncio.gather(*tasks, return_exceptions=True)  # collects exceptions; is not awaited, as some tasks end slowly


async def _timed(name: str, rail: Rail, began: float) -> RailReport:
    try:
        answer = await rail()
    except RailFailed as error:
        return no_answer(name, "broke", _ms_since(began), str(error))
    except Exception as error:  # noqa: BLE001 - whatever a rail raises, it did not pass; its text may hold the prompt
        return no_answer(name, "broke", _ms_since(began), type(error).__name__)
    return report(name, answer, _ms_since(began))


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1_000
