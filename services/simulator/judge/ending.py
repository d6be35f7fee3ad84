"""Checks at the end of a simulation: every request is closed, none too early, and no service has work left."""

from typing import NamedTuple

from schemas.requests import Request
from schemas.side_events import Account
from schemas.stream import Chunk, Cleared, Closed, Cutover, Recall, Started, StreamEvent, Verdict
from services.rails.core import RailsCore
from services.router.core import RouterCore
from services.safety.core import SafetyCore
from services.simulator.judge.oracle import LogReplay, Violation
from services.simulator.judge.truth import truth
from services.simulator.plan import CLIENT_GRACE_MS
from services.simulator.simulation import MS
from services.simulator.tree.workers import WorkerCore


class Ending(NamedTuple):
    number: int
    partition: int
    asked_us: int
    request: Request
    replay: LogReplay
    showed: bool
    accounts: list[Account]
    away_us: int


def check_live(ending: Ending) -> None:
    """Check the state of a request at the end of a simulation.

    * The request is closed, and its ``Account`` events have the outcome with which it was closed.
    * The class ``Screen`` and the simpler function ``truth`` agree which run is shown, and which event closed the
      request. This is checked only if the result of ``truth`` has ``sure=True``.
    * If text was sent to a client and the verdict is ``allow`` or ``mask``, the safety service checked or withdrew the
      whole answer.
    """
    name, screen = f"request {ending.number}", ending.replay.screen
    if screen.closed is None:
        raise Violation("every request is closed", f"{name} is open")
    outcomes = {account.outcome for account in ending.accounts}
    if outcomes != {screen.closed.outcome}:
        raise Violation("the account tells the ending", f"{name} closed {screen.closed.outcome}, accounts {outcomes}")
    events = [step.event for step in ending.replay.steps]
    if ending.showed and not _is_checked(events, screen.voice):
        raise Violation("every shown answer is cleared or recalled", f"{name}: {screen.voice}, {screen.closed}")
    told = truth(events, governed=True)
    if told.sure and told.voice is not screen.voice:
        raise Violation("one voice by the rules", f"{name}: {screen.voice}, by the rules {told.voice}")
    if told.sure and told.closed is not screen.closed:
        raise Violation("one effective ending", f"{name}: {screen.closed}, by the rules {told.closed}")


def _is_checked(events: list[StreamEvent], voice: Started | None) -> bool:
    verdict = next((event for event in events if isinstance(event, Verdict)), None)
    if voice is None or verdict is None or verdict.decision == "deny":
        return True
    about = [event for event in events if getattr(event, "run", None) == voice.run]
    return not any(isinstance(event, Chunk) for event in about) or any(
        (isinstance(event, Cleared) and event.final) or (isinstance(event, Recall) and event.action == "stop")
        for event in about
    )


def check_justified(ending: Ending, margin_us: int, *, breaker: bool, max_retries: int) -> bool:
    """Check that a request was not closed or moved to another attempt too early, and was not retried too often.

    Returns:
        Whether the request counts as healthy: it had only one attempt, and the cause of its closing is ``answered`` or
        ``recalled``.

    Raises:
        Violation: The check failed.
    """
    request, screen = ending.request, ending.replay.screen
    deadlines, name = request.deadlines, f"request {ending.number}"
    opened_us = chunk_us = ending.asked_us
    retries, attempts, last_seq = 0, 1, -1
    for at_us, event, *now in ending.replay.steps:
        before, (attempts, last_seq) = (attempts, last_seq), now
        if isinstance(event, Cutover) and attempts > before[0]:
            again = event.target == "generator" and event.trigger != "mask"
            retries += again
            early_us = {
                "ttft": opened_us + (deadlines.ttft_ms + (deadlines.stall_ms if again else 0)) * MS,
                "stall": chunk_us + deadlines.stall_ms * MS,
            }.get(event.trigger, at_us) - at_us
            if early_us > margin_us and (again or not (breaker and event.trigger == "ttft")):
                sentence = f"{name} was cut over for {event.trigger} {early_us / MS:.0f} ms before its deadline"
                raise Violation("a request that is served in time is not cut over", sentence)
            opened_us = chunk_us = at_us
            if retries > max_retries:
                raise Violation("a request is not tried again for ever", f"{name} had {retries} retries")
        elif last_seq > before[1]:
            chunk_us = at_us
        if screen.closed is event:
            _check_closing(ending, screen.closed, at_us, chunk_us, margin_us)
    return screen.attempts == 1 and screen.closed is not None and screen.closed.cause in {"answered", "recalled"}


def _check_closing(ending: Ending, closed: Closed, at_us: int, chunk_us: int, margin_us: int) -> None:
    deadlines = ending.request.deadlines
    due_us = {
        "deadline": ending.asked_us + deadlines.total_ms * MS,
        "no_verdict": ending.asked_us + deadlines.verdict_ms * MS,
        "stalled": chunk_us + deadlines.stall_ms * MS,
        "client_gone": at_us + CLIENT_GRACE_MS * MS - ending.away_us,
    }.get(closed.cause or "", at_us)
    if due_us - at_us > margin_us:
        sentence = f"request {ending.number} was closed for {closed.cause} {(due_us - at_us) / MS:.0f} ms too early"
        raise Violation("a request that is served in time is not closed early", sentence)


def check_empty(core: object, name: str) -> None:
    """Check that a core has no open request and no unfinished work. ``name`` is the core's name in the error message.

    Raises:
        Violation: The core has an open request or unfinished work.
    """
    left: dict[str, object] = {}
    if isinstance(core, RouterCore):
        shared = core._shared
        left = {
            "open requests": core.open,
            "characters of prompts": shared.config.prompt_chars - shared._free_chars,
            "reserved attempts": sum(
                len(tracker._reserved)
                for budget in (shared.budget, shared.retry_budget)
                for tracker in budget._trackers
            ),
        }
    elif isinstance(core, SafetyCore):
        held = sum(len(partition._held) for partition in core._partitions.values())
        left = {"open requests": core.open, "checks": core.pending_checks, "events": core.backlog, "outputs": held}
    elif isinstance(core, RailsCore):
        left = {"evaluations": core.backlog, "room": core._running.total(), "waiting requests": len(core._waiting)}
    elif isinstance(core, WorkerCore):
        left = {"executions": core.scheduler.running, "waiting requests": core.scheduler.waiting}
    kept = {what: count for what, count in left.items() if count}
    if kept:
        raise Violation("a core holds nothing at the end", f"{name}: {kept}")


def has_open(core: object) -> bool:
    return isinstance(core, RouterCore | SafetyCore) and bool(core.open)


def is_running(core: object) -> bool:
    if isinstance(core, RailsCore):
        return core._running.total() > 0
    return isinstance(core, WorkerCore) and bool(core.scheduler.running)
