"""What must hold at the end of a run, once faults have stopped: liveness, healthy requests, empty cores."""

from typing import NamedTuple

from schemas.side_events import Account
from schemas.stream import Chunk, Cleared, Failed, Finished, Recall, Started, StreamEvent, Verdict
from services.rails.core import RailsCore
from services.router.core import RouterCore
from services.safety.core import SafetyCore
from tests.unit.stream.oracle import truth
from tests.world.broker import Broker
from tests.world.client import Client
from tests.world.oracle import Violation, stream_of
from tests.world.plan import CLIENT_GRACE_MS
from tests.world.simulation import MS

Timed = list[tuple[int, StreamEvent]]
"""Events of a stream log, each with the time in microseconds when it was appended."""


class Ending(NamedTuple):
    """One request at the end of a run."""

    number: int
    partition: int
    asked_us: int
    client: Client
    accounts: list[Account]
    away_us: int


def check_live(broker: Broker, ending: Ending) -> None:
    """Every request is closed and accounted for, every shown answer finally cleared or recalled."""
    name, screen = f"request {ending.number}", ending.client.screen
    if screen.closed is None:
        raise Violation("every request is closed", f"{name} is open")
    outcomes = {account.outcome for account in ending.accounts}
    if outcomes != {screen.closed.outcome}:
        raise Violation("the account tells the ending", f"{name} closed {screen.closed.outcome}, accounts {outcomes}")
    events = [event for _, event in stream_of(broker, screen.request_id, ending.partition)]
    if ending.client.showed and not _is_checked(events, screen.voice):
        raise Violation("every shown answer is cleared or recalled", f"{name}: {screen.voice}, {screen.closed}")
    told = truth(events)
    if told.sure and told.voice is not screen.voice:
        raise Violation("one voice by the rules", f"{name}: {screen.voice}, by the rules {told.voice}")
    if told.sure and told.closed is not screen.closed:
        raise Violation("one effective ending", f"{name}: {screen.closed}, by the rules {told.closed}")


def _is_checked(events: list[StreamEvent], voice: Started | None) -> bool:
    """Return whether safety has said something final about the voice, or need not."""
    verdict = next((event for event in events if isinstance(event, Verdict)), None)
    if voice is None or verdict is None or verdict.decision == "deny":
        return True
    about = [event for event in events if getattr(event, "run", None) == voice.run]
    return not any(isinstance(event, Chunk) for event in about) or any(
        (isinstance(event, Cleared) and event.final) or (isinstance(event, Recall) and event.action == "stop")
        for event in about
    )


def check_healthy(broker: Broker, ending: Ending, margin_us: int) -> bool:
    """Return whether a request was served in time; then it must not be cut over, nor closed for another cause.

    Args:
        margin_us: How far clocks were apart: a request that was this close to a deadline is not judged.
    """
    request, screen = ending.client.request, ending.client.screen
    events = stream_of(broker, request.request_id, ending.partition)
    if not _served_in_time(events, ending, margin_us):
        return False
    if screen.attempts > 1:
        raise Violation("a healthy request is not cut over", f"request {ending.number}")
    if screen.closed is None or screen.closed.cause not in {"answered", "recalled"}:
        raise Violation("a healthy request is not closed early", f"request {ending.number}: {screen.closed}")
    return True


def _served_in_time(events: Timed, ending: Ending, margin_us: int) -> bool:
    """Return whether rails, worker, safety and client all kept to the request's deadlines."""
    deadlines, asked_us = ending.client.request.deadlines, ending.asked_us - margin_us
    if ending.away_us + margin_us >= CLIENT_GRACE_MS * MS:
        return False
    verdict = next((each for each in events if isinstance(each[1], Verdict)), None)
    if verdict is None or verdict[0] > asked_us + deadlines.verdict_ms * MS or verdict[1].decision != "allow":
        return False
    run = next((event.run for _, event in events if isinstance(event, Started)), None)
    of_run = [each for each in events if getattr(each[1], "run", None) == run]
    end_us = asked_us + deadlines.total_ms * MS
    if any(isinstance(event, Recall) and event.action == "stop" and at_us <= end_us for at_us, event in of_run):
        return _spoke_in_time(of_run, ending, margin_us, until=Recall)
    if not any(isinstance(event, Cleared) and event.final and at_us <= end_us for at_us, event in of_run):
        return False
    return _spoke_in_time(of_run, ending, margin_us, until=Finished)


def _spoke_in_time(of_run: Timed, ending: Ending, margin_us: int, until: type[StreamEvent]) -> bool:
    """Return whether the first token and then each chunk came in time, until the run finished or was stopped."""
    deadlines, next_seq = ending.client.request.deadlines, 0
    due_us = ending.asked_us + deadlines.ttft_ms * MS - margin_us
    for at_us, event in of_run:
        is_next = isinstance(event, Chunk) and event.seq == next_seq
        is_end = isinstance(event, until) and (not isinstance(event, Recall) or event.action == "stop")
        if (is_next or is_end) and at_us > due_us:
            return False
        if isinstance(event, Failed):
            return False
        if is_end:
            return not isinstance(event, Finished) or next_seq == event.last_seq + 1
        if is_next:
            next_seq += 1
            due_us = at_us + deadlines.stall_ms * MS - margin_us
    return False


def check_empty(core: object, name: str) -> None:
    """A core holds nothing once everything is over and its retention has passed."""
    left: dict[str, object] = {}
    if isinstance(core, RouterCore):
        shared = core._shared
        left = {
            "open requests": core.open,
            "characters of prompts": core._config.prompt_chars - shared._free_chars,
            "reserved fallbacks": sum(len(tracker._reserved) for tracker in shared.budget._trackers),
        }
    elif isinstance(core, SafetyCore):
        held = sum(len(partition._held) for partition in core._partitions.values())
        left = {"open requests": core.open, "checks": core.pending_checks, "events": core.backlog, "outputs": held}
    elif isinstance(core, RailsCore):
        left = {"evaluations": core.backlog}
    kept = {what: count for what, count in left.items() if count}
    if kept:
        raise Violation("a core holds nothing at the end", f"{name}: {kept}")


def has_open(core: object) -> bool:
    """Return whether a core still holds requests, which its retention may end."""
    return isinstance(core, RouterCore | SafetyCore) and bool(core.open)
