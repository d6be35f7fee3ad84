"""The ops: instructions to a client that shows an answer. They are sent as JSON objects.

Offsets are code points in the text that is visible when the op is applied.
"""

from dataclasses import dataclass, field
from typing import Literal, assert_never

from schemas.stream import FinishReason, Outcome, Trigger, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A run starts to answer. The visible text does not change.

    Attributes:
        attempt: Number of the attempt.
        run: Id of the run.
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
        text: The text to append.
        tokens: Number of tokens that the engine generated for this text.
    """

    op: Literal["show"] = "show"
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Replace a span of the visible text: ``visible[start:end]`` becomes ``text``.

    Attributes:
        start: Offset of the span's first code point.
        end: Offset of the span's last code point, plus one. If the recalled text was never shown, ``end`` is equal to
            ``start``.
        text: The text that replaces the span.
        rule: Name of the policy's rule that caused the recall.
        category: Category of the finding, such as ``email``.
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
    """Replace the whole visible text, because the answer was withdrawn. After this, no text of the answer is shown.

    Attributes:
        end: Number of code points that were visible before.
        text: The text that is shown instead.
        rule: Name of the policy's rule that caused the recall.
        category: Category of the finding, such as ``email``.
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
    """Empty the visible text, because another attempt will answer.

    Attributes:
        attempt: Number of the attempt that will answer.
        trigger: Why another attempt will answer.
    """

    op: Literal["restart"] = "restart"
    attempt: int
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Replace the visible text by a refusal, because the policy denied the prompt.

    Attributes:
        text: The refusal.
        policy_version: Content hash of the policy.
    """

    op: Literal["refuse"] = "refuse"
    text: str
    policy_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The whole answer is shown. A later recall or verdict can still replace its text.

    Attributes:
        attempt: Number of the attempt that answered.
        run: Id of the run that answered.
        finish_reason: ``stop`` or ``length``.
        usage: Numbers of tokens.
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
        outcome: How the request ended.
        reason: One sentence for people; empty when the answer is complete.
    """

    op: Literal["close"] = "close"
    outcome: Outcome
    reason: str


Op = Begin | Show | Replace | Withdraw | Restart | Refuse | Finish | Close


def apply(visible: str, op: Op) -> str:
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
