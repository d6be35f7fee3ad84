"""The ops: instructions to a client that shows an answer. They are sent as JSON objects.

Offsets count code points in the text that is visible before the op is applied.
"""

from typing import Final, assert_never

import msgspec

from schemas.stream import FinishReason, Outcome, Trigger, Usage


class Begin(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="begin"):
    """A run starts to answer. The visible text does not change.

    Attributes:
        attempt: Number of the attempt.
        run: Id of the run.
        model: The model that answers.
    """

    attempt: int
    run: str
    model: str


class Show(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="show"):
    """Append text.

    Attributes:
        text: The text to append.
        tokens: Number of tokens that the engine generated for this text.
    """

    text: str
    tokens: int


class Replace(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="replace"):
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

    start: int
    end: int
    text: str
    rule: str
    category: str
    policy_version: str
    recall_id: str


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="withdraw"):
    """Replace the whole visible text, because the answer was withdrawn. After this, no text of the answer is shown.

    Attributes:
        end: Number of code points that were visible before.
        text: The text that is shown instead.
        rule: Name of the policy's rule that caused the recall.
        category: Category of the finding, such as ``email``.
        policy_version: Content hash of the policy.
        recall_id: Id of the ``Recall`` event.
    """

    end: int
    text: str
    rule: str
    category: str
    policy_version: str
    recall_id: str


class Restart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="restart"):
    """Empty the visible text, because another attempt will answer.

    Attributes:
        attempt: Number of the attempt that will answer.
        trigger: Why another attempt will answer.
    """

    attempt: int
    trigger: Trigger


class Refuse(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="refuse"):
    """Replace the visible text by a refusal, because the policy denied the prompt.

    Attributes:
        text: The refusal.
        policy_version: Content hash of the policy.
    """

    text: str
    policy_version: str


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="finish"):
    """The whole answer is shown. A later op can still replace its text.

    Attributes:
        attempt: Number of the attempt that answered.
        run: Id of the run that answered.
        finish_reason: ``stop`` or ``length``.
        usage: Numbers of tokens.
    """

    attempt: int
    run: str
    finish_reason: FinishReason
    usage: Usage = msgspec.field(default_factory=Usage)


class Close(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="close"):
    """The request has ended.

    Attributes:
        outcome: How the request ended.
        reason: One sentence for people; empty when the answer is complete.
    """

    outcome: Outcome
    reason: str


Op = Begin | Show | Replace | Withdraw | Restart | Refuse | Finish | Close

encode_op: Final = msgspec.json.Encoder().encode
"""Return the op as a JSON object. Its field ``op`` is the op's name."""


def name_of(op: Op | type[Op]) -> str:
    return str(op.__struct_config__.tag)


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
