"""What a client must do. Offsets are code points in the text that is visible when the op is applied.

A client that applies every op in order shows what ``Screen.visible`` says. Ops are JSON objects; ``op`` names them.
"""

from dataclasses import dataclass, field
from typing import Literal, assert_never

from schemas.stream import FinishReason, Outcome, Trigger, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """From here on this execution is heard; the visible text does not change."""

    op: Literal["begin"] = "begin"
    attempt: int
    run: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Append ``text``. ``tokens`` counts what the engine spent on it."""

    op: Literal["show"] = "show"
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Redaction: ``visible[start:end]`` becomes ``text``. The span is empty where the text was never shown."""

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
    """The whole answer becomes ``text``, for ever. ``end`` is how many code points were visible."""

    op: Literal["withdraw"] = "withdraw"
    end: int
    text: str
    rule: str
    category: str
    policy_version: str
    recall_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The visible text becomes empty: another attempt will speak."""

    op: Literal["restart"] = "restart"
    attempt: int
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Policy denied the request: the visible text becomes this refusal."""

    op: Literal["refuse"] = "refuse"
    text: str
    policy_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The answer is complete; only ``Close`` can follow, or a recall."""

    op: Literal["finish"] = "finish"
    attempt: int
    run: str
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The request has ended."""

    op: Literal["close"] = "close"
    outcome: Outcome
    reason: str


Op = Begin | Show | Replace | Withdraw | Restart | Refuse | Finish | Close


def apply(visible: str, op: Op) -> str:
    """The text a client shows after the op."""
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
