"""When a request should get another attempt, and whether it may. Pure."""

from enum import Enum
from typing import Final, Literal, NamedTuple

from schemas.requests import Message
from schemas.stream import Failed, How, Trigger
from services.router.budget import Ledger
from services.router.case import Case
from services.router.policy import Policy

Target = Literal["vertex", "generator"]

_SICK: Final = frozenset({"unavailable", "overloaded", "timeout", "engine_dead", "internal"})
"""Failures that speak against the self-hosted path, not against the prompt."""


class Objection(Enum):
    """Why a cutover may not be made; the value says it to people."""

    UNREAD = "its question or its verdict was not read yet"
    OFF = "fallback is off"
    HOPELESS = "another attempt would not help"
    USED = "the fallback was used"
    DECLINED = "the request asks for no fallback"
    NOT_KEPT = "its prompt was not kept"
    CONFINED = "its prompt must not leave the premises"
    CONFINED_BY_POLICY = "policy keeps its prompt on the premises"
    SPENT = "the fallback budget is spent"


class Plan(NamedTuple):
    """A cutover that is due.

    Attributes:
        trigger: Why.
        how: ``race`` leaves the earlier attempt its chance.
        target: Who runs the next attempt.
        seen_seq: The voice's last chunk that was read.
    """

    trigger: Trigger
    how: How
    target: Target
    seen_seq: int


def due_plan(case: Case, now_us: int, policy: Policy) -> Plan | None:
    """The cutover whose reason holds now, whether or not it may be made."""
    screen = case.screen
    if screen.over or screen.stopped is not None:
        return None
    if _wants_mask(case):
        return Plan("mask", "cancel", "generator", screen.last_seq)
    if screen.finished is not None:
        return None
    if all_failed(case) is not None:
        return Plan("hard_error", "cancel", "vertex", screen.last_seq)
    due_us = trigger_us(case, policy)
    if due_us is None or now_us < due_us:
        return None
    if screen.heard:
        return Plan("stall", "cancel", "vertex", screen.last_seq)
    race = case.request is not None and case.request.fallback == "race" and not case.straight
    return Plan("ttft", "race" if race else "cancel", "vertex", screen.last_seq)


def trigger_us(case: Case, policy: Policy) -> int | None:
    """When silence becomes a reason, microseconds since the epoch; None when it never does."""
    if not has_clock(case, policy) or _spent_attempts(case, policy):
        return None
    if case.screen.heard:
        return case.spoke_us + policy.stall.bound_us(case.deadlines.stall_ms)
    return case.turn_us if case.straight else ttft_due_us(case, policy)


def ttft_due_us(case: Case, policy: Policy) -> int:
    """By when the current attempt should have spoken: on the user's clock, queueing included."""
    return case.turn_us + policy.ttft_us(case.deadlines, case.prompt_chars)


def all_failed(case: Case) -> Failed | None:
    """The last failure, when every attempt that could still be heard has failed."""
    last: Failed | None = None
    for attempt in sorted(case.screen.candidates):
        book = case.books.get(attempt)
        if book is None or book.failed is None:
            return None
        last = book.failed
    return last


def objection(case: Case, plan: Plan, now_us: int, policy: Policy, ledger: Ledger) -> Objection | None:
    """Return why the cutover may not be made; ``UNREAD`` is no reason to close. None: it may be made."""
    if plan.target == "generator":
        return Objection.UNREAD if case.request is None else None
    failure = all_failed(case)
    if policy.fallback == "off":
        return Objection.OFF
    if failure is not None and not failure.retryable:
        return Objection.HOPELESS
    if _spent_attempts(case, policy):
        return Objection.USED
    if case.request is not None and case.request.fallback == "off":
        return Objection.DECLINED
    outward = egress_objection(case, policy)
    if outward is None and next_messages(case) is None:
        return Objection.NOT_KEPT
    if outward is None and not ledger.allows(price(case, policy), now_us):
        return Objection.SPENT
    return outward


def egress_objection(case: Case, policy: Policy) -> Objection | None:
    """Return why the prompt may not leave the premises; ``UNREAD`` while the verdict is outstanding. None: it may."""
    request, verdict = case.request, case.screen.verdict
    if request is None:
        return Objection.UNREAD
    if request.egress == "forbidden":
        return Objection.CONFINED
    if verdict is None:
        voice = case.screen.voice
        gated = policy.input_gate == "hold" or (voice is not None and voice.input_gate == "hold")
        return Objection.UNREAD if gated else None
    if verdict.egress == "forbidden" or verdict.decision == "deny":
        return Objection.CONFINED_BY_POLICY
    return None


def price(case: Case, policy: Policy) -> float:
    """What a fallback may cost at most, in US dollars."""
    return policy.prices.estimate(case.prompt_chars, case.request.sampling.max_tokens if case.request else 0)


def cloud_attempts(case: Case) -> list[int]:
    """The attempts that went to the cloud."""
    return [n for n, cutover in case.cutovers.items() if cutover.target == "vertex"]


def next_messages(case: Case) -> tuple[Message, ...] | None:
    """The prompt of the next attempt: as policy masked it, if it did; None when it was not kept."""
    verdict, request = case.screen.verdict, case.request
    if verdict is not None and verdict.decision == "mask":
        return verdict.masked or None
    return request.messages if request is not None and case.kept else None


def judgement(case: Case, now_us: int, policy: Policy) -> bool | None:
    """How the self-hosted path served the request in time; None while that is open, or not for it to answer for."""
    if case.straight or not has_clock(case, policy) or cloud_attempts(case):
        return None
    if case.screen.heard:
        return case.heard_us <= ttft_due_us(case, policy)
    failure = all_failed(case)
    if failure is not None:
        return False if failure.error_class in _SICK else None
    return False if now_us >= ttft_due_us(case, policy) else None


def falls_back(case: Case, policy: Policy) -> bool:
    """Whether the request may be served by the cloud at all."""
    request = case.request
    if policy.fallback == "off" or request is None:
        return False
    return request.fallback != "off" and request.egress == "allowed"


def has_clock(case: Case, policy: Policy) -> bool:
    """Whether silence matters: a batch request has time, and one without a fallback can only wait."""
    return case.lane == "interactive" and falls_back(case, policy)


def _wants_mask(case: Case) -> bool:
    verdict = case.screen.verdict
    if verdict is None or verdict.decision != "mask" or not verdict.masked:
        return False
    return all(cutover.trigger != "mask" for cutover in case.cutovers.values())


def _spent_attempts(case: Case, policy: Policy) -> bool:
    return len(cloud_attempts(case)) >= policy.max_fallbacks
