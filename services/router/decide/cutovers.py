"""Decide whether a request gets another attempt now, and where that attempt runs. No I/O, no clock."""

from enum import Enum
from typing import Final, Literal, NamedTuple

from schemas.base import MAX_ATTEMPT
from schemas.requests import Message
from schemas.stream import CutoverMode, Failed, Trigger
from services.router.state.budget import AttemptBudgets
from services.router.state.request import RequestState

Target = Literal["vertex", "generator"]

LEAST_BATCH_STALL_US: Final = 10_000_000
"""Minimum stall deadline of a batch request in microseconds. A shorter one in the request is ignored.

It is long, because the text of a batch answer is written only once a second, and the engine serves interactive answers
first.
"""

BATCH_BACKOFF_US: Final = 2_000_000
"""Microseconds that a batch request waits before its first retry after a failure that may pass. Each retry doubles the
wait."""

LONGEST_BACKOFF_US: Final = 60_000_000

_SELF_HOSTED_FAULTS: Final = frozenset({"unavailable", "overloaded", "timeout", "engine_dead", "internal"})
"""Error classes that are faults of the self-hosted engines. Errors of other classes are caused by the prompt."""


class Objection(Enum):
    """A reason against a cutover. Each value is a text that may become part of the ``reason`` of a ``Closed``."""

    UNREAD = "its question or its verdict was not read yet"
    OFF = "fallback is off"
    NOT_ITS_CLASS = "its class does not go to the cloud"
    HOPELESS = "another attempt would not help"
    USED = "the fallback was used"
    DECLINED = "the request asks for no fallback"
    NOT_KEPT = "its prompt was not kept"
    CONFINED = "its prompt must not leave the premises"
    CONFINED_BY_POLICY = "policy keeps its prompt on the premises"
    SPENT = "the fallback budget is spent"
    RETRIES_OFF = "there are no retries"
    RETRIED = "every retry was used"
    RETRIES_SPENT = "the retry budget is spent"


NOT_WORTH_SAYING: Final = frozenset({Objection.OFF, Objection.NOT_ITS_CLASS, Objection.RETRIES_OFF})
"""Objections that follow from the operator's settings. The reason in a ``Closed`` does not mention them."""

BUDGETS: Final = frozenset({Objection.SPENT, Objection.RETRIES_SPENT})
"""Objections that a budget is spent. A moment later, the budget may allow the cutover."""


class CutoverPlan(NamedTuple):
    trigger: Trigger
    how: CutoverMode
    target: Target
    seen_seq: int


class CutoverChoice(NamedTuple):
    """Whether a request needs another attempt now, and whether it gets one.

    Attributes:
        trigger: Why the request needs another attempt; None if it needs none.
        plan: The cutover to make; None if there is none to make.
        against: The objection to each cutover that was considered; empty if ``plan`` is set.
    """

    trigger: Trigger | None = None
    plan: CutoverPlan | None = None
    against: tuple[Objection, ...] = ()


NO_CUTOVER: Final = CutoverChoice()


def choose_cutover(state: RequestState, known_us: int, now_us: int, budgets: AttemptBudgets) -> CutoverChoice:
    """Return the cutover to make now, or the reasons why none may be made.

    Args:
        state: The request.
        known_us: The time up to which the log was read. Deadlines are compared with this time.
        now_us: The current time. Only the budgets use it.
        budgets: The budget for fallbacks, the budget for retries, and the circuit breaker.
    """
    plans = _due_cutovers(state, known_us, prefer_cloud=budgets.breaker.state != "closed")
    against = []
    for plan in plans:
        found = _objection(state, plan, now_us, budgets)
        if found is None:
            return CutoverChoice(plan.trigger, plan)
        against.append(found)
    return CutoverChoice(plans[0].trigger, None, tuple(against)) if plans else NO_CUTOVER


def _due_cutovers(state: RequestState, known_us: int, *, prefer_cloud: bool) -> tuple[CutoverPlan, ...]:
    # After a stall or the death of a worker, a retry comes first, then the cloud. Other failures go to the cloud.
    screen = state.screen
    if screen.over or screen.stopped is not None:
        return ()
    if _wants_mask(state):
        return (CutoverPlan("mask", "cancel", "generator", screen.last_seq),)
    if screen.finished is not None:
        return ()
    failure = all_failed(state)
    trigger: Trigger = "hard_error"
    if failure is not None:
        due_us: int | None = _failure_due_us(state, failure)
        retry = failure.error_class == "engine_dead" or state.lane == "batch"
    elif screen.has_spoken:
        due_us, trigger, retry = stall_due_us(state), "stall", True
    else:
        return _late_first_token(state, known_us)
    if not _is_due(due_us, known_us):
        return ()
    seen_seq = screen.last_seq
    cloud = CutoverPlan(trigger, "cancel", "vertex", seen_seq)
    if not retry:
        return (cloud,)
    again = CutoverPlan(trigger, "cancel", "generator", seen_seq)
    if trigger == "stall" and state.lane == "batch":
        return (again,)  # a batch request has time, so a stall does not send it to the cloud
    return (cloud, again) if prefer_cloud else (again, cloud)


def _late_first_token(state: RequestState, known_us: int) -> tuple[CutoverPlan, ...]:
    # Perhaps the earlier attempt is only waiting in a queue, so the retry does not cancel that attempt: the two race.
    plans = []
    if _is_due(fallback_due_us(state), known_us):
        race = state.request is not None and state.request.fallback == "race" and not _awaits_bypass(state)
        plans.append(CutoverPlan("ttft", "race" if race else "cancel", "vertex", state.screen.last_seq))
    if _is_due(retry_due_us(state), known_us):
        plans.append(CutoverPlan("ttft", "race", "generator", state.screen.last_seq))
    return tuple(plans)


def _is_due(due_us: int | None, known_us: int) -> bool:
    return due_us is not None and known_us >= due_us


def trigger_times_us(state: RequestState) -> list[int]:
    """Return the times at which silence or a failure may lead to a cutover, in microseconds since the epoch."""
    failure = all_failed(state)
    times = [] if failure is None else [_failure_due_us(state, failure)]
    spoken = state.screen.has_spoken
    silence_us = [stall_due_us(state)] if spoken else [fallback_due_us(state), retry_due_us(state)]
    if state.bypass and not spoken:
        silence_us.append(ttft_due_us(state))  # it is due for the cloud earlier, but late only from then on
    return times + [at_us for at_us in silence_us if at_us is not None]


def _failure_due_us(state: RequestState, failure: Failed) -> int:
    # A batch request waits before it is tried again, if the failure may pass.
    passes = failure.retryable and failure.error_class != "engine_dead"  # if dead, another worker takes it at once
    if state.lane != "batch" or not passes or _retries_used_up(state):
        return 0
    return state.failed_us + min(BATCH_BACKOFF_US << len(state.retries), LONGEST_BACKOFF_US)


def stall_due_us(state: RequestState) -> int | None:
    """Return the deadline of the answer's next chunk; None if there is no such deadline.

    For example, there is none before the first chunk, or after the end of the answer.
    """
    if state.lane is None or not state.screen.has_spoken or state.screen.finished is not None:
        return None
    if state.lane == "batch" and _retries_used_up(state):
        return None
    return state.last_chunk_us + _stall_us(state)


def fallback_due_us(state: RequestState) -> int | None:
    """Return when a request without a first token goes to the cloud; None if there is no such time."""
    if not state.has_cloud_deadline or state.screen.has_spoken or _fallbacks_used_up(state):
        return None
    return state.attempt_opened_us if _awaits_bypass(state) else ttft_due_us(state)


def _awaits_bypass(state: RequestState) -> bool:
    return state.bypass and not state.cloud_attempts  # a second attempt in the cloud waits until the first one is late


def retry_due_us(state: RequestState) -> int | None:
    """Return when another self-hosted attempt is due, for a request that has no first token yet.

    Return None if no such attempt is due.
    """
    if state.lane is None or state.screen.has_spoken or _retries_used_up(state):
        return None
    if state.lane == "batch":
        return state.begun_us + _stall_us(state) if state.begun_us else None
    return ttft_due_us(state) + _stall_us(state)


def _stall_us(state: RequestState) -> int:
    stall_us = state.deadlines.stall_ms * 1_000
    return max(stall_us, LEAST_BATCH_STALL_US) if state.lane == "batch" else stall_us


def ttft_due_us(state: RequestState) -> int:
    """Return the deadline of the current attempt's first token. Time in a queue does not extend it."""
    return state.attempt_opened_us + state.config.ttft_us(state.deadlines, state.prompt_chars)


def all_failed(state: RequestState) -> Failed | None:
    """Return the failure of the newest candidate if all candidates have failed; otherwise None.

    The candidates are the attempts whose text may still be shown. There are several candidates only while attempts
    race for the first token.
    """
    failures = state.failures
    if not failures:
        return None
    candidates = state.screen.candidates
    return failures[max(candidates)] if candidates <= failures.keys() else None


def _objection(state: RequestState, plan: CutoverPlan, now_us: int, budgets: AttemptBudgets) -> Objection | None:
    if plan.trigger == "mask":
        return Objection.UNREAD if state.request is None else None
    failure = all_failed(state)
    if plan.target == "generator":
        return _objection_to_retry(state, failure, now_us, budgets)
    return _objection_to_fallback(state, failure, now_us, budgets)


def _objection_to_fallback(
    state: RequestState, failure: Failed | None, now_us: int, budgets: AttemptBudgets
) -> Objection | None:
    if state.config.fallback == "off":
        return Objection.OFF
    if not state.class_has_cloud:
        return Objection.NOT_ITS_CLASS
    if failure is not None and not failure.retryable:
        return Objection.HOPELESS
    if _fallbacks_used_up(state):
        return Objection.USED
    if state.request is not None and state.request.fallback == "off":
        return Objection.DECLINED
    against = egress_objection(state)
    if against is None and next_messages(state) is None:
        return Objection.NOT_KEPT
    if against is None and not budgets.cloud.allows(price(state), now_us):
        return Objection.SPENT
    return against


def _objection_to_retry(
    state: RequestState, failure: Failed | None, now_us: int, budgets: AttemptBudgets
) -> Objection | None:
    if not state.most_retries:
        return Objection.RETRIES_OFF
    if failure is not None and not failure.retryable:
        return Objection.HOPELESS
    if _retries_used_up(state):
        return Objection.RETRIED
    if state.request is None:
        return Objection.UNREAD
    if next_messages(state) is None:
        return Objection.NOT_KEPT
    allowed = state.lane == "batch" or budgets.retries.allows(0.0, now_us)
    return None if allowed else Objection.RETRIES_SPENT


def egress_objection(state: RequestState) -> Objection | None:
    """Return why the prompt may not leave the premises; None if it may leave."""
    request, verdict = state.request, state.screen.verdict
    if request is None:
        return Objection.UNREAD
    if request.egress == "forbidden":
        return Objection.CONFINED
    if verdict is None:
        return Objection.UNREAD if state.awaits_verdict else None
    if verdict.egress == "forbidden" or verdict.decision == "deny":
        return Objection.CONFINED_BY_POLICY
    return None


def price(state: RequestState) -> float:
    """Estimate the highest possible price of a fallback, in US dollars."""
    return state.config.prices.estimate(state.prompt_chars, state.request.sampling.max_tokens if state.request else 0)


def next_messages(state: RequestState) -> tuple[Message, ...] | None:
    """Return the prompt for the next attempt; None if the router does not have it.

    If the policy's verdict is ``mask``, the result is the masked prompt that the verdict contains.
    """
    verdict, request = state.screen.verdict, state.request
    if verdict is not None and verdict.decision == "mask":
        return verdict.masked or None
    return request.messages if request is not None and state.prompt_kept else None


def health_outcome(state: RequestState, known_us: int) -> bool | None:
    """Return whether the self-hosted engines served the request in time; None if this is not known."""
    if state.bypass or not state.has_cloud_deadline or state.cloud_attempts:
        return None
    if state.screen.closed is not None or state.screen.conclusion == "denied":
        return None  # its engine was told to stop, so that it says nothing is no fault
    if state.screen.has_spoken:
        return state.first_chunk_us <= ttft_due_us(state)
    failure = all_failed(state)
    if failure is not None:
        return False if failure.error_class in _SELF_HOSTED_FAULTS else None
    return False if known_us >= ttft_due_us(state) else None


def _wants_mask(state: RequestState) -> bool:
    verdict = state.screen.verdict
    if verdict is None or verdict.decision != "mask" or not verdict.masked:
        return False
    return all(cutover.trigger != "mask" for cutover in state.cutovers.values())


def _fallbacks_used_up(state: RequestState) -> bool:
    return len(state.cloud_attempts) >= state.config.max_fallbacks or state.screen.attempts >= MAX_ATTEMPT


def _retries_used_up(state: RequestState) -> bool:
    return len(state.retries) >= state.most_retries or state.screen.attempts >= MAX_ATTEMPT
