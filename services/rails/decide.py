"""The verdict, from how the rails ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.requests import MAX_PROMPT_CHARS, Delivery, Egress, Message, Request
from schemas.stream import Decision, RailOutcome
from services.policy import Admission, Policy
from services.policy.rulings import DeliveryFloor
from services.rails.rail import Edit, Report

BROKEN: Final = "broken"
"""Refusal text of a request whose rails did not all come to an answer."""

UNKNOWN: Final = Admission(allow=False, delivery=DeliveryFloor(mode="gated"), egress="forbidden")
"""Who may see how much is not known when Rego did not say it: then nothing is shown before it was checked."""

MAX_DETAIL: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContent:
    """What a verdict says.

    Attributes:
        decision: What policy says.
        rails: Each rail's outcome.
        refusal: What a denied user is shown.
        masked: The prompt to rerun with, when it is masked.
        delivery: As policy wants it.
        egress: Whether the prompt may leave the premises.
    """

    decision: Decision
    rails: tuple[RailOutcome, ...]
    refusal: str
    masked: tuple[Message, ...] | None
    delivery: Delivery
    egress: Egress


def decide(policy: Policy, request: Request, reports: Sequence[Report], admission: Admission | None) -> VerdictContent:
    """The verdict.

    A rail that did not answer did not pass: the request is denied unless policy says otherwise of that rail. One that
    was cancelled beside no rail that blocked counts as one that policy says nothing of.

    Args:
        policy: Which policy.
        request: What was asked.
        reports: How each rail ended, most decisive first.
        admission: What Rego said of the request; None when it did not answer.
    """
    admission = admission or UNKNOWN
    edits = tuple(edit for one in reports if one.answer is not None for edit in one.answer.edits)
    reason = _refused(policy, reports)
    masked = mask(request.messages, edits) if edits and reason is None else None
    if masked is not None and any(len(message.content) > MAX_PROMPT_CHARS for message in masked):
        reason, masked = "prompt", None
    decision: Decision = "deny" if reason is not None else "mask" if masked is not None else "allow"
    return VerdictContent(
        decision=decision,
        rails=tuple(
            RailOutcome(rail=one.rail, result=one.result, ms=round(one.ms, 3), detail=one.detail[:MAX_DETAIL])
            for one in reports
        ),
        refusal="" if reason is None else policy.refusal(reason),
        masked=masked,
        delivery=policy.tighten(request.delivery, admission),
        egress=_egress(request, reports, admission),
    )


def _refused(policy: Policy, reports: Sequence[Report]) -> str | None:
    for one in reports:
        if one.answer is not None and one.answer.reason is not None:
            return one.answer.reason
    for one in reports:
        if one.result == "cancelled":
            return BROKEN
        if one.answer is None and policy.on_broken(one.rail) == "deny":
            return BROKEN
    return None


def _egress(request: Request, reports: Sequence[Report], admission: Admission) -> Egress:
    """A prompt may leave only when everybody who was to be asked has answered, and nobody said no."""
    said = [one.answer.egress if one.answer is not None else "forbidden" for one in reports]
    said += [request.egress, admission.egress]
    return "forbidden" if "forbidden" in said else "allowed"


def mask(messages: tuple[Message, ...], edits: tuple[Edit, ...]) -> tuple[Message, ...]:
    """The messages with every edited span replaced; spans that overlap become one, with the first one's text."""
    by_message: dict[int, list[Edit]] = {}
    for edit in sorted(edits):
        merged = by_message.setdefault(edit.message, [])
        if merged and edit.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, edit.end))
        else:
            merged.append(edit)
    return tuple(
        Message(role=message.role, content=_edited(message.content, by_message.get(index, [])))
        for index, message in enumerate(messages)
    )


def _edited(text: str, edits: list[Edit]) -> str:
    pieces, end = [], 0
    for edit in edits:
        pieces += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join((*pieces, text[end:]))
