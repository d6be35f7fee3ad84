"""The requests for checks of tier 1 (NeMo rails) and tier 2 (classifiers), and the outcomes of the checks. No I/O."""

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
        tier: 1 for NeMo rails, 2 for classifiers.
        policy: The policy that was in force when the checks of the answer began.
    """

    number: int
    tier: Tier
    tenant: str
    attempt: int
    policy: Policy
    text: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check, with offsets in the window. If ``spans`` is empty, the check found nothing."""

    spans: tuple[FoundSpan, ...]


@dataclass(frozen=True, slots=True)
class Unchecked:
    """The outcome of a check that was not completed. The text stays unchecked.

    The reason must not contain user text.
    """

    reason: str


CheckOutcome = CheckResult | Unchecked

RunOutput = Recall | Cleared | CheckRequest
"""What ``RunCheck`` returns: an event to write to the stream log, or a further check to run."""
