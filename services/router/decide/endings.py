"""Decide whether and how a request should be closed now. No I/O, no clock.

Each function checks one or a few reasons for closing. It returns None if none of them applies.
"""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.stream import Cause, Conclusion, Outcome, Trigger
from services.router.decide.cutovers import (
    BUDGETS,
    NOT_WORTH_SAYING,
    CutoverChoice,
    Objection,
    all_failed,
    egress_objection,
    next_messages,
    ttft_due_us,
)
from services.router.state.request import RequestState


class CloseDecision(NamedTuple):
    """How a request should be closed. ``cause`` is a code for programs, and ``reason`` is text for people.

    Without a ``cause``, the ``Closed`` is never void.
    """

    cause: Cause | None
    outcome: Outcome
    reason: str


def answered(state: RequestState, conclusion: Conclusion | None) -> CloseDecision | None:
    stopped = state.screen.stopped
    if conclusion == "denied":
        return CloseDecision("denied", "denied", "policy refused the prompt")
    if conclusion == "recalled" and stopped is not None:
        return CloseDecision("recalled", "recalled", f"rule {stopped.rule} withdrew the answer")
    return CloseDecision("answered", "completed", "") if conclusion == "answered" else None


def overdue(state: RequestState, known_us: int) -> CloseDecision | None:
    gone_us, grace_ms = state.client_gone_us, state.config.client_grace_ms
    if gone_us is not None and known_us >= gone_us + grace_ms * 1_000:
        return CloseDecision("client_gone", "cancelled", f"the client was gone for more than {grace_ms} ms")
    if known_us >= state.deadline_us:
        total_ms = state.deadlines.total_ms
        return CloseDecision("deadline", "expired", f"not answered within {total_ms} ms of receipt: {_why_late(state)}")
    verdict_ms = state.deadlines.verdict_ms
    if state.awaits_verdict and known_us >= state.received_us + verdict_ms * 1_000:
        return CloseDecision(
            "no_verdict", "failed", f"the input check gave no verdict within {verdict_ms} ms of receipt"
        )
    return None


def no_attempt_left(state: RequestState, choice: CutoverChoice, known_us: int, now_us: int) -> CloseDecision | None:
    """Return how to close a request that cannot get the attempt that it needs; None if the request stays open."""
    against = choice.against
    if choice.trigger is None or not against or Objection.UNREAD in against or state.lane is None:
        return None  # without its ``Request``, it is not known which attempts it may have
    if choice.trigger == "hard_error":
        failure = all_failed(state)
        if failure is None or (failure.error_class == "timeout" and now_us >= state.deadline_us):
            return None  # the total deadline passed in the worker, so `overdue` closes the request
        outcome: Outcome = "cancelled" if failure.error_class == "cancelled" else "failed"
        reasons = _in_words(each for each in against if each not in NOT_WORTH_SAYING)
        because = f" ({reasons})" if reasons else ""
        return CloseDecision("attempts_failed", outcome, f"{failure.error_class}: {failure.message[:1_500]}{because}")
    if choice.trigger not in _SILENCE or state.lane == "batch":
        return None
    if choice.trigger == "ttft" and known_us < ttft_due_us(state):
        return None  # the breaker refused it, but the engines have it too, and it is not late yet
    # After a late first token, the request stays open, because the token may still come.
    spent = not BUDGETS.isdisjoint(against)
    if state.config.when_spent == "close" if spent else choice.trigger == "stall":
        cause, silence = _SILENCE[choice.trigger]
        return CloseDecision(cause, "failed", f"{silence}, and {_in_words(against)}")
    return None


def cannot_begin(state: RequestState) -> CloseDecision | None:
    """Return how to close a request whose only remaining attempt cannot begin; None for other requests."""
    if not state.cutovers or state.screen.voice is not None:
        return None
    for attempt, cutover in state.cutovers.items():
        if attempt in state.republished or state.screen.candidates != {attempt} or state.request is None:
            continue
        against = egress_objection(state) if cutover.target == "vertex" else None
        if against is None and next_messages(state) is None:
            against = Objection.NOT_KEPT
        if against is not None and against is not Objection.UNREAD:
            return CloseDecision("cannot_begin", "failed", f"attempt {attempt} cannot begin: {against.value}")
    return None


def no_masked_prompt(state: RequestState) -> CloseDecision | None:
    verdict = state.screen.verdict
    if verdict is None or verdict.decision != "mask" or verdict.masked:
        return None
    return CloseDecision(
        "no_masked_prompt", "failed", "policy wants the prompt masked, but its verdict holds no masked prompt"
    )


def never_cleared(state: RequestState) -> CloseDecision | None:
    """Return how to close a request if its text must be checked but no safety service runs."""
    screen = state.screen
    verdict, voice, finished = screen.verdict, screen.voice, screen.finished
    if verdict is None or verdict.delivery is None or voice is None or not screen.gate_open:
        return None
    mode = verdict.delivery.mode
    if mode == "optimistic" or "on" in (voice.output_check, state.config.output_check):
        return None
    if mode == "windowed" and (finished is None or screen.last_seq < finished.last_seq):
        return None  # a short answer can be complete without a check
    # It has no cause of its own, because older edges could not read a new one.
    return CloseDecision(None, "failed", f"policy makes delivery {mode}, but no safety service checks the answer")


def _why_late(state: RequestState) -> str:
    screen = state.screen
    if screen.finished is not None:
        whole = screen.last_seq >= screen.finished.last_seq
        return "its answer was complete, but not checked to its end" if whole else "a part of its answer is missing"
    if screen.has_spoken:
        silence = "its answer stalled" if state.over_budget else "its answer was not complete"
    elif state.awaits_verdict:
        silence = "its input check gave no verdict"
    elif all(record.started is None for record in state.attempt_records.values()):
        silence = "no worker began it"
    else:
        silence = "no first token"
    return f"{silence}, and a budget for further attempts is spent" if state.over_budget else silence


def _in_words(against: Iterable[Objection]) -> str:
    return " and ".join(dict.fromkeys(each.value for each in against))


_SILENCE: dict[Trigger, tuple[Cause, str]] = {
    "ttft": ("no_first_token", "no first token by its deadline"),
    "stall": ("stalled", "the answer stalled"),
}
