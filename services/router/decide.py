"""What the router owes a request now: pure decisions from a case, the time and the policy.

A decision is written to the log first; what follows from it is done when the *effective* one is read back. So this
function is asked again after every event and at every alarm, and answers with what is not on the log yet.
"""

from dataclasses import dataclass
from typing import NamedTuple

from schemas.books import Account, Cancel, CancelReason
from schemas.stream import Closed, Outcome
from schemas.topics import ACCOUNTS, CONTROL, STREAMS, Topic
from schemas.wire import AnyEvent
from services.router.case import Case
from services.router.policy import RETRY_US, SETTLE_US, Policy


@dataclass(frozen=True, slots=True)
class Write:
    """An event the router wants on a topic."""

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None


class Ending(NamedTuple):
    """How a request should be closed."""

    outcome: Outcome
    reason: str


_WHY_STOP: dict[Outcome, CancelReason] = {
    "denied": "denied",
    "recalled": "recalled",
    "cancelled": "client_gone",
    "completed": "lost_race",
    "failed": "expired",
    "expired": "expired",
}


def decide(case: Case, now_us: int, policy: Policy, source: str) -> list[Write]:
    """What to write now. ``source`` is the router's own name."""
    if case.screen.closed is not None:
        return _after_close(case, case.screen.closed, now_us, source)
    if not case.known:
        return []
    writes: list[Write] = []
    if case.screen.stopped is not None or _is_denied(case):
        writes += _stop(case, "denied" if _is_denied(case) else "recalled", now_us, source)
    ending = find_ending(case, now_us, policy)
    if ending is not None and case.asks("closed", now_us):
        writes.append(_close(case, ending, now_us, source))
    return writes


def turn_away(case: Case, now_us: int, policy: Policy, source: str) -> Write:
    """The closing of a request that comes when the router holds as many as it may."""
    return _close(
        case, Ending("failed", f"{policy.max_open} requests are open in its partition already"), now_us, source
    )


def find_ending(case: Case, now_us: int, policy: Policy) -> Ending | None:
    """How the request should be closed now, if it should be."""
    return _answered(case) or _broken(case) or _overdue(case, now_us, policy)


def next_alarm_us(case: Case, now_us: int, policy: Policy) -> int:
    """When the clock alone could change the decision, microseconds since the epoch; it may be in the past."""
    if case.screen.closed is not None:
        return _next_account_alarm(case, case.screen.closed, now_us)
    if not case.known:
        return case.opened_us + policy.window_us
    asked_us = case.asked_us("closed")
    if asked_us is not None:
        return asked_us + RETRY_US
    alarms = [case.received_us + policy.total_us(case.deadlines)]
    if case.clients.gone_since_us is not None:
        alarms.append(case.clients.gone_since_us + policy.client_grace_ms * 1_000)
    if _awaits_verdict(case, policy):
        alarms.append(case.received_us + case.deadlines.verdict_ms * 1_000)
    return min(alarms)


def _answered(case: Case) -> Ending | None:
    """The answer came to its end on the log."""
    screen = case.screen
    if _is_denied(case):
        return Ending("denied", "policy refused the prompt")
    if screen.stopped is not None:
        told = screen.withdrawn is not None or screen.verdict is not None  # a closed gate hides the replacement as well
        return Ending("recalled", f"rule {screen.stopped.rule} withdrew the answer") if told else None
    return Ending("completed", "") if screen.over else None


def _broken(case: Case) -> Ending | None:
    """Every attempt that could still be heard has failed."""
    if case.screen.finished is not None:
        return None
    failures = [case.books[n].failed if n in case.books else None for n in sorted(case.screen.candidates)]
    last = failures[-1]
    if last is None or None in failures:
        return None
    outcome: Outcome = "cancelled" if last.error_class == "cancelled" else "failed"
    return Ending(outcome, f"{last.error_class}: {last.message}"[:2_000])


def _overdue(case: Case, now_us: int, policy: Policy) -> Ending | None:
    """A deadline has passed."""
    gone_us = case.clients.gone_since_us
    if gone_us is not None and now_us >= gone_us + policy.client_grace_ms * 1_000:
        return Ending("cancelled", f"the client was gone for more than {policy.client_grace_ms} ms")
    total_us = policy.total_us(case.deadlines)
    if now_us >= case.received_us + total_us:
        return Ending("expired", f"not answered within {total_us // 1_000} ms of receipt")
    verdict_ms = case.deadlines.verdict_ms
    if _awaits_verdict(case, policy) and now_us >= case.received_us + verdict_ms * 1_000:
        return Ending("failed", f"the input check gave no verdict within {verdict_ms} ms of receipt")
    return None


def _awaits_verdict(case: Case, policy: Policy) -> bool:
    voice = case.screen.voice
    gate = policy.input_gate if voice is None else voice.input_gate
    return gate == "hold" and case.screen.verdict is None


def _is_denied(case: Case) -> bool:
    verdict = case.screen.verdict
    return verdict is not None and verdict.decision == "deny"


def _close(case: Case, ending: Ending, now_us: int, source: str) -> Write:
    voice = case.screen.voice
    closed = Closed(
        request_id=case.request_id,
        tenant=case.tenant,
        at=now_us,
        source=source,
        outcome=ending.outcome,
        reason=ending.reason,
        attempt=None if voice is None else voice.attempt,
    )
    return Write(STREAMS, closed, case.traceparent)


def _stop(case: Case, reason: CancelReason, now_us: int, source: str) -> list[Write]:
    """One ``Cancel`` for all workers that may still be at work."""
    running = case.running()
    if not running:
        return []
    case.stopping.update(running)
    cancel = Cancel(request_id=case.request_id, tenant=case.tenant, at=now_us, source=source, reason=reason)
    return [Write(CONTROL, cancel, case.traceparent)]


def _after_close(case: Case, closed: Closed, now_us: int, source: str) -> list[Write]:
    """The effective ``Closed`` was read: no worker goes on, and the books are written."""
    writes: list[Write] = []
    if closed.outcome != "rejected":  # a request that nobody could read runs nowhere
        writes += _stop(case, _WHY_STOP[closed.outcome], now_us, source)
    if now_us >= _settled_us(case, closed) and case.asks("account", now_us):
        writes.append(Write(ACCOUNTS, _account(case, closed, now_us, source), case.traceparent))
    return writes


def _settled_us(case: Case, closed: Closed) -> int:
    """When the account may be written: at once, or a moment later while a cancelled worker still owes its usage."""
    owed = any(book.started is not None and not book.ended for book in case.books.values())
    return closed.at + SETTLE_US if owed else 0


def _next_account_alarm(case: Case, closed: Closed, now_us: int) -> int:
    asked_us = case.asked_us("account")
    return max(_settled_us(case, closed), now_us) if asked_us is None else asked_us + RETRY_US


def _account(case: Case, closed: Closed, now_us: int, source: str) -> Account:
    verdict = case.screen.verdict
    return Account(
        request_id=case.request_id,
        tenant=case.tenant,
        at=now_us,
        source=source,
        outcome=closed.outcome,
        lane=case.lane or "interactive",
        received_at=min(case.received_us, closed.at),
        verdict_at=None if verdict is None else verdict.at,
        rails_ms=None if verdict is None else verdict.total_ms,
        closed_at=closed.at,
        attempts=tuple(case.books[n].account() for n in sorted(case.books)),
        recalls=len(case.recalls),
    )
