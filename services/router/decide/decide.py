"""Decide what the router writes for a request now, from the request's state and the time. No I/O, no clock.

A decision is an event, such as a ``Cutover``. The router writes the event to the log and reads it back. The router
ignores the event if earlier events on the log contradict the decision. For example, a ``Cutover`` may start another
attempt because the first token is late. This ``Cutover`` has no effect if the first token precedes it on the log.
"""

from typing import Final

from schemas.stream import Closed, Conclusion, Cutover
from schemas.topics import STREAMS
from services.processor import Write
from services.router.config import RETRY_US
from services.router.decide.cutovers import (
    BUDGETS,
    NO_CUTOVER,
    CutoverPlan,
    choose_cutover,
    price,
    trigger_times_us,
)
from services.router.decide.effects import after_close, begin_attempts, settled_us, stop_all, stop_losers
from services.router.decide.endings import (
    CloseDecision,
    answered,
    cannot_begin,
    never_cleared,
    no_attempt_left,
    no_masked_prompt,
    overdue,
)
from services.router.state.budget import AttemptBudgets
from services.router.state.request import EventContext, RequestState, cutover_key

BUDGET_RETRY_US: Final = 1_000_000
"""Microseconds after which a cutover is considered again if its budget was spent."""


def decide(state: RequestState, known_us: int, budgets: AttemptBudgets, context: EventContext) -> list[Write]:
    """Return the events to write for a request.

    Args:
        state: The request.
        known_us: The time up to which the log was read. Deadlines are compared with this time.
        budgets: The budgets of the partition.
        context: The current time, and the name of this router, which the new events carry as their source.
    """
    if state.screen.closed is not None:
        return after_close(state, state.screen.closed, known_us, context)
    if not state.known:
        return []
    writes: list[Write] = []
    conclusion = state.screen.conclusion
    if conclusion == "denied":
        writes += stop_all(state, "denied", context)
    elif state.screen.stopped is not None:
        writes += stop_all(state, "recalled", context)
    elif state.cutovers:
        writes += begin_attempts(state, known_us, context)
        writes += stop_losers(state, context)
    return writes + _next_event(state, known_us, budgets, context, conclusion)


def close_too_many_open(state: RequestState, context: EventContext) -> Write:
    state.should_write("closed", context.now_us, context)
    is_batch = state.lane == "batch"
    most = f"{state.config.max_batch_open} batch" if is_batch else f"{state.config.max_open} interactive"
    reason = f"{most} requests are open in its partition already"
    return _close(state, CloseDecision("too_many_open", "failed", reason), context)


def next_alarm_us(state: RequestState, known_us: int) -> int:
    """Return when to call ``decide`` next if no event comes before, in microseconds since the epoch.

    A time in the past means at once.
    """
    if state.screen.closed is not None:
        written_us = state.pending.get("account")
        return settled_us(state) if written_us is None else written_us + RETRY_US
    if not state.known:
        return state.opened_us + state.config.window_us
    written_us = state.pending.get("closed")
    if written_us is not None and known_us < written_us + RETRY_US:
        return written_us + RETRY_US
    alarm_us = state.deadline_us
    if state.client_gone_us is not None:
        alarm_us = min(alarm_us, state.client_gone_us + state.config.client_grace_ms * 1_000)
    if state.awaits_verdict:
        alarm_us = min(alarm_us, state.received_us + state.deadlines.verdict_ms * 1_000)
    for due_us in trigger_times_us(state):
        if known_us < due_us < alarm_us:
            alarm_us = due_us
    if state.over_budget:
        alarm_us = min(alarm_us, known_us + BUDGET_RETRY_US)
    for written_us in state.pending.values():
        # After that, ``decide`` has written it again, or it is no longer wanted.
        if known_us < written_us + RETRY_US < alarm_us:
            alarm_us = written_us + RETRY_US
    return alarm_us


def _next_event(
    state: RequestState, known_us: int, budgets: AttemptBudgets, context: EventContext, conclusion: Conclusion | None
) -> list[Write]:
    attempt = state.screen.attempts + 1
    written_us = state.pending.get(cutover_key(attempt)) if state.pending else None
    if written_us is not None and known_us - written_us >= RETRY_US:
        budgets.release(state.request_id)
        written_us = None
    choice = NO_CUTOVER if written_us is not None else choose_cutover(state, known_us, context.now_us, budgets)
    state.over_budget = not BUDGETS.isdisjoint(choice.against)
    ending = (
        answered(state, conclusion)
        or overdue(state, known_us)
        or no_masked_prompt(state)
        or never_cleared(state)
        or cannot_begin(state)
        or no_attempt_left(state, choice, known_us, context.now_us)
    )
    if ending is not None:
        return [_close(state, ending, context)] if state.should_write("closed", known_us, context) else []
    plan = choice.plan
    if plan is None or not state.should_write(cutover_key(attempt), known_us, context):
        return []
    if plan.target == "vertex":
        budgets.cloud.reserve(state.request_id, price(state))
    elif plan.trigger != "mask" and state.lane != "batch":
        budgets.retries.reserve(state.request_id, 0.0)
    return [_cutover(state, plan, attempt, context)]


def _close(state: RequestState, ending: CloseDecision, context: EventContext) -> Write:
    voice = state.screen.voice
    closed = Closed(
        **context.envelope(state),
        outcome=ending.outcome,
        reason=ending.reason,
        attempt=None if voice is None else voice.attempt,
        cause=ending.cause,
        seen_seq=state.screen.last_seq,
        seen_attempts=state.screen.attempts,
    )
    return Write(STREAMS, closed, state.traceparent)


def _cutover(state: RequestState, plan: CutoverPlan, attempt: int, context: EventContext) -> Write:
    cutover = Cutover(**context.envelope(state), attempt=attempt, **plan._asdict())
    return Write(STREAMS, cutover, state.traceparent)
