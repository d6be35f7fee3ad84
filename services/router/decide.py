"""What the router owes a request now: pure decisions from a case, the time and the policy.

A decision is written to the log first; what follows from it is done when the *effective* one is read back. So this
function is asked again after every event and at every alarm, and answers with what is not on the log yet.
"""

from typing import Final

from schemas.stream import Closed, Cutover
from schemas.topics import STREAMS
from services.processor import Write
from services.router.budget import Ledger
from services.router.case import Case, Stamp, cutover_key
from services.router.effects import after_close, begin_attempts, settled_us, stop_all, stop_losers
from services.router.endings import Ending, answered, awaits_verdict, hopeless, overdue, stranded, unmaskable
from services.router.policy import RETRY_US, Policy
from services.router.triggers import Objection, Plan, due_plan, objection, price, trigger_us

RELOOK_US: Final = 1_000_000
"""How soon to look again at a cutover for which the budget was short."""


def decide(case: Case, now_us: int, policy: Policy, ledger: Ledger, stamp: Stamp) -> list[Write]:
    """What to write. Everything was read up to ``now_us``, and deadlines count so far; ``stamp`` is what is written."""
    if case.screen.closed is not None:
        return after_close(case, case.screen.closed, now_us, policy, stamp)
    if not case.known:
        return []
    writes: list[Write] = []
    if case.screen.conclusion == "denied":
        writes += stop_all(case, "denied", stamp)
    elif case.screen.stopped is not None:
        writes += stop_all(case, "recalled", stamp)
    elif case.cutovers:
        writes += begin_attempts(case, now_us, policy, stamp)
        writes += stop_losers(case, stamp)
    return writes + _next_word(case, now_us, policy, ledger, stamp)


def turn_away(case: Case, policy: Policy, stamp: Stamp) -> Write:
    """The closing of a request that comes when the router holds as many as it may."""
    case.asks("closed", stamp.now_us, stamp)
    ending = Ending("too_many_open", "failed", f"{policy.max_open} requests are open in its partition already")
    return _close(case, ending, stamp)


def next_alarm_us(case: Case, now_us: int, policy: Policy) -> int:
    """When the clock alone could change the decision, microseconds since the epoch; it may be in the past."""
    if case.screen.closed is not None:
        asked_us = case.asked_us("account")
        return settled_us(case) if asked_us is None else asked_us + RETRY_US
    if not case.known:
        return case.opened_us + policy.window_us
    sent_us = case.asked_us("closed")
    if sent_us is not None:
        return sent_us + RETRY_US
    alarms = [case.received_us + policy.total_us(case.deadlines)]
    if case.clients.gone_since_us is not None:
        alarms.append(case.clients.gone_since_us + policy.client_grace_ms * 1_000)
    if awaits_verdict(case, policy):
        alarms.append(case.received_us + case.deadlines.verdict_ms * 1_000)
    due_us = trigger_us(case, policy)
    if due_us is not None and due_us > now_us:
        alarms.append(due_us)
    if case.short:
        alarms.append(now_us + RELOOK_US)
    alarms += [sent_us + RETRY_US for sent_us in case.on_their_way()]
    return min(alarms)


def _next_word(case: Case, now_us: int, policy: Policy, ledger: Ledger, stamp: Stamp) -> list[Write]:
    """The next thing to say of the request on its log: a closing, a cutover, or nothing."""
    plan = due_plan(case, now_us, policy)
    attempt = case.screen.attempts + 1
    sent_us = case.asked_us(cutover_key(attempt))
    if sent_us is not None and now_us - sent_us < RETRY_US:
        plan = None  # it is on its way
    elif sent_us is not None:
        ledger.release(case.request_id)
    against = None if plan is None else objection(case, plan, stamp.now_us, policy, ledger)
    case.short = against is Objection.SPENT
    ending = (
        answered(case)
        or overdue(case, now_us, policy)
        or unmaskable(case)
        or stranded(case, policy)
        or hopeless(case, plan, against, stamp.now_us, policy)
    )
    if ending is not None:
        return [_close(case, ending, stamp)] if case.asks("closed", now_us, stamp) else []
    if plan is None or against is not None or not case.asks(cutover_key(attempt), now_us, stamp):
        return []
    if plan.target == "vertex":
        ledger.reserve(case.request_id, price(case, policy))
    return [_cut(case, plan, attempt, stamp)]


def _close(case: Case, ending: Ending, stamp: Stamp) -> Write:
    voice = case.screen.voice
    closed = Closed(
        **stamp.envelope(case),
        outcome=ending.outcome,
        reason=ending.reason,
        attempt=None if voice is None else voice.attempt,
        cause=ending.cause,
        seen_seq=case.screen.last_seq,
        seen_attempts=case.screen.attempts,
    )
    return Write(STREAMS, closed, case.traceparent)


def _cut(case: Case, plan: Plan, attempt: int, stamp: Stamp) -> Write:
    cutover = Cutover(
        **stamp.envelope(case),
        attempt=attempt,
        trigger=plan.trigger,
        how=plan.how,
        target=plan.target,
        seen_seq=plan.seen_seq,
    )
    return Write(STREAMS, cutover, case.traceparent)
