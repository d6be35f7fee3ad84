import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

from schemas.requests import Egress
from schemas.stream import RailResult


class Edit(NamedTuple):
    """A part of a message to replace.

    Attributes:
        message: Index of the message in the prompt.
        start: Index of the part's first code point, counted from the start of the message.
        end: Index after the part's last code point.
        text: The replacement.
    """

    message: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RailAnswer:
    """The answer of a rail on a prompt.

    Attributes:
        reason: If the rail refuses the prompt, the key of the refusal text in the policy, else None.
        edits: The parts of the prompt to mask.
        egress: ``forbidden`` if this rail forbids sending the prompt to the cloud, otherwise ``allowed``.
        detail: An explanation that the verdict will contain. It must not contain prompt text.
    """

    reason: str | None = None
    edits: tuple[Edit, ...] = ()
    egress: Egress = "allowed"
    detail: str = ""


PASSED = RailAnswer()

Rail = Callable[[], Awaitable[RailAnswer]]


class RailFailed(Exception):
    """The rail can give no answer. The message must not contain prompt text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RailReport:
    """The outcome of one rail for one prompt.

    Attributes:
        ms: Time in milliseconds from the start of all rails to the end of this rail.
        answer: The rail's answer; None if it gave none.
        detail: An explanation that the verdict will contain. It must not contain prompt text.
    """

    rail: str
    result: RailResult
    ms: float
    answer: RailAnswer | None = None
    detail: str = ""

    @property
    def egress(self) -> Egress:
        return "forbidden" if self.answer is None else self.answer.egress


def report(rail: str, answer: RailAnswer, ms: float) -> RailReport:
    result: RailResult = "blocked" if answer.reason is not None else "masked" if answer.edits else "passed"
    return RailReport(rail=rail, result=result, ms=ms, answer=answer, detail=answer.detail)


def no_answer(rail: str, result: RailResult, ms: float, detail: str = "") -> RailReport:
    if result not in get_args(RailResult)[3:]:
        raise ValueError(f"{result} needs an answer")
    return RailReport(rail=rail, result=result, ms=ms, detail=detail)


async def run_rails(rails: Mapping[str, Rail], deadlines_s: Mapping[str, float]) -> list[RailReport]:
    """Run rails concurrently, and return their reports in the order of ``rails``.

    If one refuses the prompt, cancel the rails that still run. ``deadlines_s`` has each rail's deadline, in seconds
    from now.
    """
    began, loop = time.perf_counter(), asyncio.get_running_loop()
    tasks = {name: loop.create_task(_timed(name, rail, began), name=f"rail-{name}") for name, rail in rails.items()}
    ended: dict[str, RailReport] = {}
    over: asyncio.Future[None] = loop.create_future()

    def end(one: RailReport) -> None:
        ended[one.rail] = one
        if (one.result == "blocked" or len(ended) == len(rails)) and not over.done():
            over.set_result(None)

    def on_done(name: str, task: asyncio.Task[RailReport]) -> None:
        if name in ended:
            return
        if task.cancelled():  # not by us: what the rail waited for was cancelled, so the rail gave no answer
            end(no_answer(name, "broke", _ms_since(began), "CancelledError"))
        else:
            end(_in_time(task.result(), deadlines_s[name]))

    def on_deadline(name: str) -> None:
        task = tasks[name]
        if not task.done():
            end(_late(name, _ms_since(began), deadlines_s[name]))
            task.cancel()  # not awaited, because some tasks end slowly

    timers = [loop.call_later(max(deadlines_s[name], 0), on_deadline, name) for name in rails]
    for name, task in tasks.items():
        task.add_done_callback(partial(on_done, name))
    try:
        if rails:
            await over
    finally:
        for timer in timers:
            timer.cancel()
        for task in tasks.values():
            task.cancel()
    return [ended.get(name) or no_answer(name, "cancelled", _ms_since(began)) for name in rails]


def _in_time(ended: RailReport, deadline_s: float) -> RailReport:
    # A rail that blocks the event loop ends late without a timeout, because the timeout needs the event loop, too.
    if ended.result == "blocked" or ended.ms <= deadline_s * 1_000:
        return ended
    return _late(ended.rail, ended.ms, deadline_s)


def _late(name: str, ms: float, deadline_s: float) -> RailReport:
    return no_answer(name, "timeout", ms, f"no answer within {deadline_s * 1_000:.0f} ms")


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
