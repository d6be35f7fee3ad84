"""When a request should get another attempt, and whether it may. Pure."""

from enum import Enum
from typing import Final, Literal, NamedTuple

from schemas.requests import Message
from schemas.stream import CutoverMode, Failed, Trigger
from services.router.state.budget import SpendTracker
from services.router.state.request import RequestState

Target = Literal["vertex", "generator"]

_SELF_HOSTED_FAULTS: Final = frozenset({"unavailable", "overloaded", "timeout", "engine_dead", "internal"})
"""Error classes that the self-hosted path is responsible for; the prompt is for the others."""


class Objection(Enum):
    """A reason against a cutover; the value is the text for people."""

    UNREAD = "its question or its verdict was not read yet"
    OFF = "fallback is off"
    HOPELESS = "another attempt would not help"
    USED = "the fallback was used"
    DECLINED = "the request asks for no fallback"
    NOT_KEPT = "its prompt was not kept"
    CONFINED = "its prompt must not leave the premises"
    CONFINED_BY_POLICY = "policy keeps its prompt on the premises"
    SPENT = "the fallback budget is spent"


class CutoverPlan(NamedTuple):
    """A cutover that is due; the fields are those of ``Cutover``."""

    trigger: Trigger
    how: CutoverMode
    target: Target
    seen_seq: int


def due_cutover(state: RequestState, now_us: int) -> CutoverPlan | None:
    """Return the cutover whose trigger holds now, whether or not it may be made."""
    screen = state.screen
    if screen.over or screen.stopped is not None:
        return None
    if _wants_mask(state):
        return CutoverPlan("mask", "cancel", "generator", screen.last_seq)
    if screen.finished is not None:
        return None
    if all_failed(state) is not None:
        return CutoverPlan("hard_error", "cancel", "vertex", screen.last_seq)
    due_us = trigger_us(state)
    if due_us is None or now_us < due_us:
        return None
    if screen.has_spoken:
        return CutoverPlan("stall", "cancel", "vertex", screen.last_seq)
    race = state.request is not None and state.request.fallback == "race" and not state.bypass
    return CutoverPlan("ttft", "race" if race else "cancel", "vertex", screen.last_seq)


def trigger_us(state: RequestState) -> int | None:
    """Return when silence triggers a cutover, in microseconds since the epoch; None for never."""
    if not has_silence_deadline(state) or _fallbacks_used_up(state):
        return None
    if state.screen.has_spoken:
        return state.last_chunk_us + state.config.stall.clamp_us(state.deadlines.stall_ms)
    return state.attempt_opened_us if state.bypass else ttft_due_us(state)


def ttft_due_us(state: RequestState) -> int:
    """Return when the current attempt's first token is due; time in queues counts."""
    return state.attempt_opened_us + state.config.ttft_us(state.deadlines, state.prompt_chars)


def all_failed(state: RequestState) -> Failed | None:
    """Return the newest attempt's failure if every attempt that may still become the voice has failed."""
    failures, candidates = state.failures, state.screen.candidates
    return failures[max(candidates)] if failures and candidates <= failures.keys() else None


def objection(state: RequestState, plan: CutoverPlan, now_us: int, spending: SpendTracker) -> Objection | None:
    """Return the reason against the cutover; None if it may be made. ``UNREAD`` is no reason to close the request."""
    if plan.target == "generator":
        return Objection.UNREAD if state.request is None else None
    failure = all_failed(state)
    if state.config.fallback == "off":
        return Objection.OFF
    if failure is not None and not failure.retryable:
        return Objection.HOPELESS
    if _fallbacks_used_up(state):
        return Objection.USED
    if state.request is not None and state.request.fallback == "off":
        return Objection.DECLINED
    against = egress_objection(state)
    if against is None and next_messages(state) is None:
        return Objection.NOT_KEPT
    if against is None and not spending.allows(price(state), now_us):
        return Objection.SPENT
    return against


def egress_objection(state: RequestState) -> Objection | None:
    """Return the reason why the prompt must stay on the premises; ``UNREAD`` while a verdict is awaited, else None."""
    request, verdict = state.request, state.screen.verdict
    if request is None:
        return Objection.UNREAD
    if request.egress == "forbidden":
        return Objection.CONFINED
    if verdict is None:
        voice = state.screen.voice
        gated = state.config.input_gate == "hold" or (voice is not None and voice.input_gate == "hold")
        return Objection.UNREAD if gated else None
    if verdict.egress == "forbidden" or verdict.decision == "deny":
        return Objection.CONFINED_BY_POLICY
    return None


def price(state: RequestState) -> float:
    """Estimate the highest price of a fallback in US dollars."""
    return state.config.prices.estimate(state.prompt_chars, state.request.sampling.max_tokens if state.request else 0)


def next_messages(state: RequestState) -> tuple[Message, ...] | None:
    """Return the prompt for the next attempt, masked if policy says so; None when it was not kept."""
    verdict, request = state.screen.verdict, state.request
    if verdict is not None and verdict.decision == "mask":
        return verdict.masked or None
    return request.messages if request is not None and state.prompt_kept else None


def health_outcome(state: RequestState, now_us: int) -> bool | None:
    """Return whether the self-hosted path served the request in time; None while open, or when it is not at fault."""
    if state.bypass or not has_silence_deadline(state) or state.cloud_attempts:
        return None
    if state.screen.has_spoken:
        return state.first_chunk_us <= ttft_due_us(state)
    failure = all_failed(state)
    if failure is not None:
        return False if failure.error_class in _SELF_HOSTED_FAULTS else None
    return False if now_us >= ttft_due_us(state) else None


def may_fall_back(state: RequestState) -> bool:
    """Return whether the configuration and the request allow the cloud."""
    request = state.request
    if request is None or state.config.fallback == "off":
        return False
    return request.fallback != "off" and request.egress == "allowed"


def has_silence_deadline(state: RequestState) -> bool:
    """Return whether silence triggers anything: not for a batch request, and not without a fallback."""
    return state.lane == "interactive" and may_fall_back(state)


def _wants_mask(state: RequestState) -> bool:
    verdict = state.screen.verdict
    if verdict is None or verdict.decision != "mask" or not verdict.masked:
        return False
    return all(cutover.trigger != "mask" for cutover in state.cutovers.values())


def _fallbacks_used_up(state: RequestState) -> bool:
    return len(state.cloud_attempts) >= state.config.max_fallbacks
