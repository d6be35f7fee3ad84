"""Compare a recorded verdict with the verdict that another policy gives on the same prompt. No I/O."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self

from schemas.requests import Delivery, Egress, Message
from schemas.stream import RailOutcome, RailResult, Verdict, VerdictDecision
from services.rails.decide import VerdictContent
from services.rails.evaluator import ADMISSION

VerdictChange = Literal[
    "denied", "masked", "admitted", "denied by other rails", "other text masked", "egress", "delivery"
]
"""How the new verdict differs from the recorded one. ``admitted`` means that the prompt was denied or masked, and would
now reach the model unchanged."""

_ANSWERS: Final[frozenset[RailResult]] = frozenset({"passed", "blocked", "masked"})


class JudgedPrompt(NamedTuple):
    """The parts of a verdict that are compared with those of another policy's verdict. Times are not compared.

    Attributes:
        blocked: Rails that refused the prompt.
        acted: Rails that refused the prompt or masked a part of it.
        unanswered: Rails that gave no answer, because they were cancelled, late or broken.
        details: The explanations of the rails that answered, by rail. A rail without an explanation is left out.
        egress_of: For each rail, whether it let the prompt leave the premises; None if the verdict comes from a version
            of Railbus that did not record this.
        masked: The prompt after masking; None if the verdict does not mask it. It is never printed.
        delivery: The verdict's rule for how much of the answer may be shown unchecked; None if it sets no rule.
    """

    decision: VerdictDecision
    blocked: frozenset[str]
    acted: frozenset[str]
    unanswered: frozenset[str]
    details: Mapping[str, str]
    egress_of: Mapping[str, Egress | None]
    masked: tuple[Message, ...] | None
    egress: Egress
    delivery: Delivery | None

    @classmethod
    def of(cls, verdict: Verdict | VerdictContent) -> Self:
        rails: tuple[RailOutcome, ...] = verdict.rails
        return cls(
            decision=verdict.decision,
            blocked=frozenset(one.rail for one in rails if one.result == "blocked"),
            acted=frozenset(one.rail for one in rails if one.result in {"blocked", "masked"}),
            unanswered=frozenset(one.rail for one in rails if one.result not in _ANSWERS),
            details={one.rail: one.detail for one in rails if one.detail and one.result in _ANSWERS},
            egress_of={one.rail: one.egress for one in rails},
            masked=verdict.masked,
            egress=verdict.egress,
            delivery=verdict.delivery,
        )

    @property
    def says_nothing(self) -> bool:
        return bool(self.unanswered) and not self.blocked

    def row(self) -> dict[str, Any]:
        return {"decision": self.decision, "rails": dict(self.details), "egress": self.egress}


class VerdictDifference(NamedTuple):
    request_id: str
    change: VerdictChange
    before: JudgedPrompt
    after: JudgedPrompt


@dataclass(slots=True)
class VerdictComparison:
    """The result of comparing all recorded verdicts with the new ones.

    Attributes:
        unanswered: Number of requests that were not compared, because the recorded or the new verdict is incomplete.
            In an incomplete verdict, a rail gave no answer, and no rail refused the prompt.
        left_out: Number of requests that were not compared, because the recorded verdict came from a rail that is not
            run now.
        blocked: For each rail, the number of prompts that the rail refuses in the new evaluation.
    """

    same: int = 0
    unanswered: int = 0
    left_out: int = 0
    blocked: Counter[str] = field(default_factory=Counter)
    differences: list[VerdictDifference] = field(default_factory=list)

    def add(self, request_id: str, before: JudgedPrompt, after: JudgedPrompt, left_out: frozenset[str]) -> None:
        self.blocked.update(after.blocked)
        if before.says_nothing or after.says_nothing:
            self.unanswered += 1
        elif before.blocked <= left_out and before.acted & left_out:
            self.left_out += 1
        elif (change := change_of(before, after, left_out)) is None:
            self.same += 1
        else:
            self.differences.append(VerdictDifference(request_id, change, before, after))


def change_of(
    before: JudgedPrompt, after: JudgedPrompt, left_out: frozenset[str] = frozenset()
) -> VerdictChange | None:
    """Return how the new verdict differs from the recorded one; None if it does not.

    Rails in ``left_out`` do not count.
    """
    # Two denials count as equal if each rail that refused before also refuses now.
    if before.decision != after.decision:
        return {"deny": "denied", "mask": "masked", "allow": "admitted"}[after.decision]  # type: ignore[return-value]
    if before.decision == "deny":
        # The first rail that refuses cancels the others, so the recorded verdict does not name all that would refuse.
        return None if before.blocked - left_out <= after.blocked else "denied by other rails"
    if before.masked != after.masked:
        return "other text masked"
    # A rail that is not run now may be the one that kept the prompt on the premises.
    allowing = all(before.egress_of.get(rail, "allowed") == "allowed" for rail in left_out)
    if before.egress != after.egress and (after.egress == "forbidden" or allowing):
        return "egress"
    if before.delivery is None or ADMISSION in left_out:  # admission's part of the delivery is unknown
        return None
    return "delivery" if before.delivery != after.delivery else None
