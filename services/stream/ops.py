"""What a client must do. Offsets are code points in the text that is visible when the op is applied.

A client that applies every op in order shows what ``Screen.visible`` returns. Ops are JSON objects; ``op`` names them.
"""

from dataclasses import dataclass, field
from typing import Literal, assert_never

from schemas.stream import FinishReason, Outcome, Trigger, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """An execution begins to answer; the visible text does not change.

    Attributes:
        attempt: Which attempt.
        run: Which execution of it.
        model: The model that answers.
    """

    op: Literal["begin"] = "begin"
    attempt: int
    run: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Append text.

    Attributes:
        text: What to append.
        tokens: Tokens that the engine spent on it.
    """

    op: Literal["show"] = "show"
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Replace a span: ``visible[start:end]`` becomes ``text``.

    Attributes:
        start: First code point of the span.
        end: One past its last; equal to ``start`` where the text was never shown.
        text: What replaces it.
        rule: The policy's rule that found something.
        category: What it found, such as ``email``.
        policy_version: Content hash of the policy.
        recall_id: Id of the ``Recall`` event.
    """

    op: Literal["replace"] = "replace"
    start: int
    end: int
    text: str
    rule: str
    category: str
    policy_version: str
    recall_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Replace the whole answer, for ever.

    Attributes:
        end: How many code points were visible.
        text: What is shown instead.
        rule: The policy's rule that found something.
        category: What it found, such as ``email``.
        policy_version: Content hash of the policy.
        recall_id: Id of the ``Recall`` event.
    """

    op: Literal["withdraw"] = "withdraw"
    end: int
    text: str
    rule: str
    category: str
    policy_version: str
    recall_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Empty the visible text: another attempt will answer.

    Attributes:
        attempt: The attempt that will answer.
        trigger: Why.
    """

    op: Literal["restart"] = "restart"
    attempt: int
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Replace the visible text by a refusal: the policy denied the prompt.

    Attributes:
        text: The refusal.
        policy_version: Content hash of the policy.
    """

    op: Literal["refuse"] = "refuse"
    text: str
    policy_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The answer is complete. Only ``close`` can follow, or a recall.

    Attributes:
        attempt: The attempt that answered.
        run: Which execution of it.
        finish_reason: ``stop`` or ``length``.
        usage: Tokens.
    """

    op: Literal["finish"] = "finish"
    attempt: int
    run: str
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The request has ended.

    Attributes:
        outcome: How.
        reason: One sentence for people; empty when the answer is complete.
    """

    op: Literal["close"] = "close"
    outcome: Outcome
    reason: str


Op = Begin | Show | Replace | Withdraw | Restart | Refuse | Finish | Close


def apply(visible: str, op: Op) -> str:
    """Return the text that a client shows after the op."""
    match op:
        case Show():
            return visible + op.text
        case Replace():
            return visible[: op.start] + op.text + visible[op.end :]
        case Withdraw() | Refuse():
            return op.text
        case Restart():
            return ""
        case Begin() | Finish() | Close():
            return visible
        case _:
            assert_never(op)
