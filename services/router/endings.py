"""Whether and how a request should be closed now. Pure."""

from typing import NamedTuple

from schemas.stream import Cause, Outcome, Trigger
from services.router.case import Case
from services.router.policy import Policy
from services.router.triggers import Objection, Plan, all_failed, egress_objection, next_messages


class Ending(NamedTuple):
    """How a request should be closed: why for programs, how it ended, and why for people."""

    cause: Cause
    outcome: Outcome
    reason: str


def answered(case: Case) -> Ending | None:
    """The answer came to its end on the log."""
    conclusion, stopped = case.screen.conclusion, case.screen.stopped
    if conclusion == "denied":
        return Ending("denied", "denied", "policy refused the prompt")
    if conclusion == "recalled" and stopped is not None:
        return Ending("recalled", "recalled", f"rule {stopped.rule} withdrew the answer")
    return Ending("answered", "completed", "") if conclusion == "answered" else None


def overdue(case: Case, now_us: int, policy: Policy) -> Ending | None:
    """A deadline has passed."""
    gone_us = case.clients.gone_since_us
    if gone_us is not None and now_us >= gone_us + policy.client_grace_ms * 1_000:
        return Ending("client_gone", "cancelled", f"the client was gone for more than {policy.client_grace_ms} ms")
    if now_us >= _end_us(case, policy):
        total_ms = policy.total_us(case.deadlines) // 1_000
        return Ending("deadline", "expired", f"not answered within {total_ms} ms of receipt")
    verdict_ms = case.deadlines.verdict_ms
    if awaits_verdict(case, policy) and now_us >= case.received_us + verdict_ms * 1_000:
        return Ending("no_verdict", "failed", f"the input check gave no verdict within {verdict_ms} ms of receipt")
    return None


def hopeless(case: Case, plan: Plan | None, objection: Objection | None, now_us: int, policy: Policy) -> Ending | None:
    """Nobody will answer: what could be heard has failed, and there is an objection to another attempt."""
    if plan is None or objection is None or objection is Objection.UNREAD:
        return None
    if plan.trigger == "hard_error":
        failure = all_failed(case)
        if failure is None or (failure.error_class == "timeout" and now_us >= _end_us(case, policy)):
            return None  # a worker that ran out of the request's own time: the deadline's alarm, which is due, says so
        outcome: Outcome = "cancelled" if failure.error_class == "cancelled" else "failed"
        because = "" if objection is Objection.OFF else f" ({objection.value})"
        return Ending("attempts_failed", outcome, f"{failure.error_class}: {failure.message[:1_500]}{because}")
    if objection is Objection.SPENT and policy.when_spent == "close":
        cause, silence = _SILENCE[plan.trigger]
        return Ending(cause, "failed", f"{silence}, and {objection.value}")
    return None


def stranded(case: Case, policy: Policy) -> Ending | None:
    """The attempt that has the floor cannot be given to its worker any more."""
    if case.screen.voice is not None:
        return None  # it has begun
    for attempt, cutover in case.cutovers.items():
        if attempt in case.republished or case.screen.candidates != {attempt} or case.request is None:
            continue
        against = egress_objection(case, policy) if cutover.target == "vertex" else None
        if against is None and next_messages(case) is None:
            against = Objection.NOT_KEPT
        if against is not None and against is not Objection.UNREAD:
            return Ending("cannot_begin", "failed", f"attempt {attempt} cannot begin: {against.value}")
    return None


def _end_us(case: Case, policy: Policy) -> int:
    """When the request must be closed."""
    return case.received_us + policy.total_us(case.deadlines)


def unmaskable(case: Case) -> Ending | None:
    """Policy wants the prompt masked and says not how."""
    verdict = case.screen.verdict
    if verdict is None or verdict.decision != "mask" or verdict.masked:
        return None
    return Ending(
        "no_masked_prompt", "failed", "policy wants the prompt masked, but its verdict holds no masked prompt"
    )


def awaits_verdict(case: Case, policy: Policy) -> bool:
    """Whether nothing may be shown before a verdict that is not there."""
    voice = case.screen.voice
    gate = policy.input_gate if voice is None else voice.input_gate
    return gate == "hold" and case.screen.verdict is None


_SILENCE: dict[Trigger, tuple[Cause, str]] = {
    "ttft": ("no_first_token", "no first token by its deadline"),
    "stall": ("stalled", "the answer stalled"),
}
