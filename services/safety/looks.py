"""What the core asks of the checks that are not its own, and what they answer. Pure."""

from dataclasses import dataclass
from typing import Literal

from schemas.stream import Cleared, Recall
from services.policy import Policy

Tier = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Spot:
    """Something a check found.

    Attributes:
        rule: Which rule.
        category: What Rego decides by.
        start: First code point of the span, in the text that was looked at.
        end: One past the last.
    """

    rule: str
    category: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A question: is this window of an answer in order?

    Attributes:
        number: Names the question; the answer is given with it.
        tier: 1 NeMo rails, 2 classifiers.
        tenant: Whose answer; looks are shared out by tenant.
        policy: The version that the answer began with.
        start: Where the window begins in the run's whole text.
        text: The window.
        last: The text ends with it.
    """

    number: int
    tier: Tier
    tenant: str
    policy: Policy
    start: int
    text: str
    last: bool

    @property
    def end(self) -> int:
        """Where the window ends in the run's whole text."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Seen:
    """The check ran; nothing found is an empty ``spots``."""

    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Broke:
    """The check did not come to an answer: the window is unchecked. The reason holds no text of anyone's."""

    reason: str


Answer = Seen | Broke


Out = Recall | Cleared | Look
"""What a run's check comes to: an event for the stream log, or a question."""
