"""The inputs and the answers of a policy's Rego rules."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from schemas.requests import DeliveryMode, Egress, Request
from services.policy.errors import RulingError

T = TypeVar("T")

Side = Literal["input", "output"]
RulingAction = Literal["stop", "redact", "deny", "mask", "flag"]

ADMISSION = "data.railbus.admission.decision"
FINDING = "data.railbus.findings.decision"

_ACTIONS: dict[Side, frozenset[str]] = {
    "input": frozenset(("deny", "mask", "flag")),
    "output": frozenset(("stop", "redact", "flag")),
}


class FoundSpan(NamedTuple):
    """A span of text in which a check found something.

    Attributes:
        rule: The name of the rule or recognizer, such as ``presidio/phone_number``.
        category: The category of the finding, such as ``email``.
        start: Offset of the first code point.
        end: Offset of the last code point, plus one.
    """

    rule: str
    category: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The input of ``findings.rego``; it must not contain user text.

    Attributes:
        tenant: The tenant of the request.
        side: Whether the finding is in the prompt (``input``) or in the answer (``output``).
        category: The category of the rule.
        rule: Name of the rule.
        tier: 0 for patterns, 1 for NeMo rails, 2 for classifiers.
    """

    tenant: str
    side: Side
    category: str
    rule: str
    tier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """The input of ``admission.rego``; it must not contain user text.

    Attributes:
        tenant: The tenant of the request.
        model: The requested model.
        lane: ``interactive`` or ``batch``.
        attempt: The number of the attempt.
        prompt_chars: Number of code points in all messages.
        max_tokens: Maximum number of tokens of the answer, as requested.
        mode: The requested delivery mode.
        egress: ``forbidden`` if the request itself forbids egress.
    """

    tenant: str
    model: str
    lane: str
    attempt: int
    prompt_chars: int
    max_tokens: int
    mode: DeliveryMode
    egress: Egress

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls(
            tenant=request.tenant,
            model=request.model,
            lane=request.lane,
            attempt=request.attempt,
            prompt_chars=sum(len(message.content) for message in request.messages),
            max_tokens=request.sampling.max_tokens,
            mode=request.delivery.mode,
            egress=request.egress,
        )


class DeliveryFloor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The least strict delivery that Rego allows.

    Attributes:
        mode: The least strict mode allowed.
        max_exposure_tokens: Maximum number of tokens that are shown and not yet checked; None for no limit.
        hold_tokens: Minimum number of tokens held back in ``windowed`` delivery.
        hold_ms: Minimum time that text is held back in ``windowed`` delivery, in milliseconds.
    """

    mode: DeliveryMode = "optimistic"
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Admission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of ``admission.rego``.

    Attributes:
        allow: Whether the request may be answered.
        reasons: Why the request may not be answered, most important reason first. Each reason is a key of ``refusals``
            in ``policy.toml``.
        delivery: The least strict delivery allowed.
        egress: Whether the prompt may leave the premises.
    """

    allow: bool
    reasons: tuple[str, ...] = ()
    delivery: DeliveryFloor = DeliveryFloor()
    egress: Egress = "allowed"


class Ruling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``findings.rego`` decides about one finding.

    Attributes:
        action: ``stop``, ``redact`` or ``flag`` for a finding in an answer of a model; ``deny``, ``mask`` or ``flag``
            for a finding in a prompt.
        egress: ``forbidden`` means that the prompt with the finding must stay on the premises.
        replacement: The text that replaces removed text; None means the category's text in ``policy.toml``.
    """

    action: RulingAction
    egress: Egress = "allowed"
    replacement: Annotated[str, Meta(max_length=2_000)] | None = None


def read_admission(answer: Any) -> Admission:
    """Convert the answer of ``admission.rego``.

    Raises:
        RulingError: The answer is undefined or invalid.
    """
    return _read(answer, Admission, ADMISSION)


def read_ruling(answer: Any, side: Side) -> Ruling:
    """Convert the answer that ``findings.rego`` gave for a finding.

    Args:
        answer: What Rego returned.
        side: Whether the finding is in a prompt (``input``) or in an answer of a model (``output``).

    Raises:
        RulingError: The answer is undefined or invalid, or its action is not allowed for ``side``.
    """
    ruling = _read(answer, Ruling, FINDING)
    if ruling.action not in _ACTIONS[side]:
        raise RulingError(f"{FINDING}: {ruling.action!r} is no action for {side}; use {sorted(_ACTIONS[side])}")
    return ruling


def _read(answer: Any, cls: type[T], entry_point: str) -> T:
    if answer is None:
        raise RulingError(f"{entry_point} is undefined for this input; give it a default")
    try:
        return msgspec.convert(answer, cls)
    except msgspec.ValidationError as error:
        raise RulingError(f"{entry_point}: {error}") from None
