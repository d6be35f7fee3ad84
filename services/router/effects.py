"""What follows from what was decided *on the log*: workers stopped, attempts begun, books written. Pure."""

from dataclasses import replace

from schemas.books import Account, Cancel, CancelReason
from schemas.requests import Request
from schemas.stream import Closed, Outcome
from schemas.topics import ACCOUNTS, CONTROL, REQUESTS, REQUESTS_VERTEX
from services.processor import Write
from services.router.case import Case, Stamp, request_key
from services.router.policy import SETTLE_US, Policy
from services.router.triggers import cloud_attempts, egress_objection, next_messages

_WHY_STOP: dict[Outcome, CancelReason] = {
    "denied": "denied",
    "recalled": "recalled",
    "cancelled": "client_gone",
    "completed": "lost_race",
    "failed": "expired",
    "expired": "expired",
}


def begin_attempts(case: Case, now_us: int, policy: Policy, stamp: Stamp) -> list[Write]:
    """Gives the attempts that effective cutovers opened to their workers, once each.

    Twice only when the partition changes hands, or the router dies, between the writing and the reading back: a few
    milliseconds. The worker runs an attempt once while it is among the newest 10,000 it took up, so the cloud is called
    twice only when the worker changed in that moment as well.
    """
    writes: list[Write] = []
    for attempt, cutover in case.cutovers.items():
        if attempt in case.republished or attempt not in case.screen.candidates:
            continue
        if cutover.target == "vertex" and egress_objection(case, policy) is not None:
            continue
        messages = next_messages(case)
        if case.request is None or messages is None or not case.asks(request_key(attempt), now_us, stamp):
            continue
        request: Request = replace(case.request, attempt=attempt, messages=messages, source=stamp.source)
        topic = REQUESTS_VERTEX if cutover.target == "vertex" else REQUESTS
        writes.append(Write(topic, request, case.traceparent))
    return writes


def stop_losers(case: Case, stamp: Stamp) -> list[Write]:
    """One ``Cancel`` for each attempt that can no longer be heard and may still be at work."""
    lost = [attempt for attempt in case.running() if attempt not in case.screen.candidates]
    raced = case.screen.heard and any(cutover.how == "race" for cutover in case.cutovers.values())
    return [_cancel(case, attempt, "lost_race" if raced else "cutover", stamp) for attempt in lost]


def stop_all(case: Case, reason: CancelReason, stamp: Stamp) -> list[Write]:
    """One ``Cancel`` for all workers, if any may still be at work."""
    running = case.running()
    if not running:
        return []
    case.stopping.update(running)
    return [_cancel(case, None, reason, stamp)]


def after_close(case: Case, closed: Closed, now_us: int, policy: Policy, stamp: Stamp) -> list[Write]:
    """The effective ``Closed`` was read: no worker goes on, and the books are written."""
    writes: list[Write] = []
    if closed.outcome != "rejected":  # a request that nobody could read runs nowhere
        writes += stop_all(case, _WHY_STOP[closed.outcome], stamp)
    if now_us >= settled_us(case) and case.asks("account", now_us, stamp):
        writes.append(Write(ACCOUNTS, _account(case, closed, policy, stamp), case.traceparent))
    return writes


def settled_us(case: Case) -> int:
    """When the account may be written: at once, or a moment later while a cancelled worker still owes its usage."""
    owed = any(book.started is not None and not book.ended for book in case.books.values())
    return case.closed_us + SETTLE_US if owed else 0


def _cancel(case: Case, attempt: int | None, reason: CancelReason, stamp: Stamp) -> Write:
    if attempt is not None:
        case.stopping.add(attempt)
    cancel = Cancel(**stamp.envelope(case), attempt=attempt, reason=reason)
    return Write(CONTROL, cancel, case.traceparent)


def _account(case: Case, closed: Closed, policy: Policy, stamp: Stamp) -> Account:
    verdict = case.screen.verdict
    books = {attempt: case.books[attempt].account() for attempt in sorted(case.books)}
    return Account(
        **stamp.envelope(case),
        outcome=closed.outcome,
        lane=case.lane or "interactive",
        received_at=min(case.received_us, closed.at),
        verdict_at=None if verdict is None else verdict.at,
        rails_ms=None if verdict is None else verdict.total_ms,
        closed_at=closed.at,
        attempts=tuple(books.values()),
        recalls=len(case.recalls),
        cost_usd=sum(policy.prices.of(books[attempt].usage) for attempt in cloud_attempts(case)),
    )
