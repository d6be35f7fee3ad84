"""The requests for checks of tiers 1 and 2, and the outcomes of these checks. No I/O."""

from dataclasses import dataclass
from typing import Literal, final

from schemas.stream import Cleared, Recall
from services.policy import FoundSpan, Policy

Tier = Literal[1, 2]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """A window of an answer's text to check.

    Attributes:
        number: Identifies this check request.
        tier: 1 for NeMo rails, 2 for classifiers.
        tenant: The tenant that the answer belongs to; tenants take turns with their checks.
        policy: The policy version of the answer's request.
        text: The text of the window.
        last: Whether the answer's text ends with this window.
    """

    number: int
    tier: Tier
    tenant: str
    policy: Policy
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check, with offsets in the window. If ``spans`` is empty, the check found nothing."""

    spans: tuple[FoundSpan, ...]


@dataclass(frozen=True, slots=True)
class Unchecked:
    """The outcome of a check that failed, so that its window is unchecked. The reason must not contain user text."""

    reason: str


CheckOutcome = CheckResult | Unchecked

RunOutput = Recall | Cleared | CheckRequest
"""An output of a run's check: an event for the stream log, or a check to run."""
