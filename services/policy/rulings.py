"""What Rego is asked and how its answer is read. An answer of another form is an error, never an "allowed"."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from schemas.requests import Egress, Mode
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What Rego is asked about something that was found: no text of anyone's.

    Attributes:
        tenant: Whose request.
        side: In the prompt or in the answer.
        category: As the rule says.
        rule: Which rule found it.
        tier: 0 patterns, 1 NeMo rails, 2 classifiers.
    """

    tenant: str
    side: Side
    category: str
    rule: str
    tier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admittance:
    """What Rego is asked about a request: no text of anyone's.

    Attributes:
        tenant: Who asks.
        model: Which model.
        lane: ``interactive`` or ``batch``.
        attempt: Which attempt.
        prompt_chars: Code points in all messages.
        max_tokens: Longest answer asked for.
        mode: Delivery mode asked for.
        egress: ``forbidden`` when the request itself says so.
    """

    tenant: str
    model: str
    lane: str
    attempt: int
    prompt_chars: int
    max_tokens: int
    mode: Mode
    egress: Egress


class DeliveryFloor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How strict a delivery must at least be.

    Attributes:
        mode: Least strict mode.
        max_exposure_tokens: Largest exposure.
        hold_tokens: Fewest tokens held back when windowed.
        hold_ms: Shortest time held back when windowed.
    """

    mode: Mode = "optimistic"
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Admission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``admission.rego``'s ``decision``.

    Attributes:
        allow: Whether the request may be answered.
        reasons: Why not, as codes that name refusal texts, most important first.
        delivery: How strict the delivery must at least be.
        egress: Whether the prompt may leave the premises.
    """

    allow: bool
    reasons: tuple[str, ...] = ()
    delivery: DeliveryFloor = DeliveryFloor()
    egress: Egress = "allowed"


class Ruling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``findings.rego``'s ``decision``.

    Attributes:
        action: ``stop``, ``redact`` or ``flag`` for an answer; ``deny``, ``mask`` or ``flag`` for a prompt.
        egress: ``forbidden`` keeps a prompt with this finding on the premises.
        replacement: What stands for removed text; None takes the category's from ``policy.toml``.
    """

    action: RulingAction
    egress: Egress = "allowed"
    replacement: Annotated[str, Meta(max_length=2_000)] | None = None


def read_admission(answer: Any) -> Admission:
    """Rego's answer, checked.

    Raises:
        RulingError: It is undefined or of another form.
    """
    return _read(answer, Admission, ADMISSION)


def read_ruling(answer: Any, side: Side) -> Ruling:
    """Rego's answer, checked; the action must be one of that side.

    Raises:
        RulingError: It is undefined or of another form.
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
