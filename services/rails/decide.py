"""Decide the verdict on a request from the reports of its rails. No I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from schemas.requests import MAX_PROMPT_CHARS, Delivery, Egress, Message, Request
from schemas.stream import RailOutcome, VerdictDecision
from schemas.wire import MAX_EVENT_BYTES
from services.policy import Admission, Policy
from services.policy.rulings import DeliveryFloor
from services.rails.rail import Edit, RailReport, no_answer

BROKEN_REFUSAL: Final = "broken"
"""Key of the refusal text of a request for which a rail gave no answer."""

UNKNOWN_ADMISSION: Final = Admission(allow=False, delivery=DeliveryFloor(mode="gated"), egress="forbidden")
"""Stands for the answer of ``admission.rego`` if it gave none. No text is shown before it is checked, and the prompt
stays on the premises."""

MAX_DETAIL: Final = 200

OTHER_BYTES: Final = 40_000
"""Room for the other fields of an event that contains a masked prompt: the ``Verdict``, and the next ``Request``."""

CROWDED: Final = "too many requests of this tenant wait for the rails"


class VerdictContent(NamedTuple):
    decision: VerdictDecision
    rails: tuple[RailOutcome, ...]
    refusal: str
    masked: tuple[Message, ...] | None
    delivery: Delivery
    egress: Egress


def decide(
    policy: Policy, request: Request, reports: Sequence[RailReport], admission: Admission | None
) -> VerdictContent:
    """Return the verdict on a request. The first rail in ``reports`` that refuses the prompt gives the reason.

    ``admission`` is the answer of the policy's ``admission.rego``; None if it gave no answer.
    """
    admission = admission or UNKNOWN_ADMISSION
    edits = tuple(edit for one in reports if one.answer is not None for edit in one.answer.edits)
    reason = _refused(policy, reports)
    masked = mask(request.messages, edits) if edits and reason is None else None
    if masked is not None and not _fits(masked):
        reason, masked = "prompt", None
    decision: VerdictDecision = "deny" if reason is not None else "mask" if masked is not None else "allow"
    return VerdictContent(
        decision=decision,
        rails=tuple(_outcome(one) for one in reports),
        refusal="" if reason is None else policy.refusal(reason),
        masked=masked,
        delivery=policy.tighten(request.delivery, admission),
        egress=_egress(request, reports, admission),
    )


def _outcome(one: RailReport) -> RailOutcome:
    detail = one.detail[:MAX_DETAIL]
    return RailOutcome(rail=one.rail, result=one.result, ms=round(one.ms, 3), detail=detail, egress=one.egress)


def deny_unread(policy: Policy, request: Request) -> VerdictContent:
    return decide(policy, request, [no_answer("queue", "cancelled", 0.0, CROWDED)], None)


def _refused(policy: Policy, reports: Sequence[RailReport]) -> str | None:
    for one in reports:
        if one.answer is not None and one.answer.reason is not None:
            return one.answer.reason
    for one in reports:
        if one.result == "cancelled":
            return BROKEN_REFUSAL
        if one.answer is None and policy.on_broken(one.rail) == "deny":
            return BROKEN_REFUSAL
    return None


def _egress(request: Request, reports: Sequence[RailReport], admission: Admission) -> Egress:
    answers = {request.egress, admission.egress, *(one.egress for one in reports)}
    return "forbidden" if "forbidden" in answers else "allowed"


def _fits(masked: tuple[Message, ...]) -> bool:
    if any(len(message.content) > MAX_PROMPT_CHARS for message in masked):
        return False
    return len(msgspec.json.encode(masked)) <= MAX_EVENT_BYTES - OTHER_BYTES


def mask(messages: tuple[Message, ...], edits: tuple[Edit, ...]) -> tuple[Message, ...]:
    """Replace the span of each edit by the text of the edit.

    Overlapping spans become one span, which is replaced by the text of the edit that starts first.
    """
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
