"""What input rails answer, and how it is written down. Pure."""

from dataclasses import dataclass
from typing import NamedTuple, get_args

from schemas.requests import Egress, Message
from schemas.stream import RailResult


class Edit(NamedTuple):
    """A span of the prompt that is masked.

    Attributes:
        message: Which message.
        start: First code point of the span in its content.
        end: One past the last.
        text: What stands there instead.
    """

    message: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rail that did its work says.

    Attributes:
        reason: Why the prompt is refused, as a key of the policy's refusal texts; None: it is not.
        edits: What has to be masked.
        egress: ``forbidden`` keeps the prompt on the premises.
        detail: For the verdict; never prompt text.
    """

    reason: str | None = None
    edits: tuple[Edit, ...] = ()
    egress: Egress = "allowed"
    detail: str = ""


PASSED = Answer()


class RailBroke(Exception):
    """A rail came to no answer. The message holds no text of anyone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a rail ended.

    Attributes:
        rail: Its name.
        result: How.
        ms: How long it took, in milliseconds.
        answer: What it said; None exactly when it said nothing.
        detail: For the verdict; never prompt text.
    """

    rail: str
    result: RailResult
    ms: float
    answer: Answer | None = None
    detail: str = ""


def report(rail: str, answer: Answer, ms: float) -> Report:
    """How a rail that answered ended."""
    result: RailResult = "blocked" if answer.reason is not None else "masked" if answer.edits else "passed"
    return Report(rail=rail, result=result, ms=ms, answer=answer, detail=answer.detail)


def silent(rail: str, result: RailResult, ms: float, detail: str = "") -> Report:
    """How a rail that did not answer ended."""
    if result not in get_args(RailResult)[3:]:
        raise ValueError(f"{result} wants an answer")
    return Report(rail=rail, result=result, ms=ms, detail=detail)


def mask(messages: tuple[Message, ...], edits: tuple[Edit, ...]) -> tuple[Message, ...]:
    """The messages with every edited span replaced; spans that overlap become one, with the first one's text."""
    by_message: dict[int, list[Edit]] = {}
    for edit in sorted(edits):
        merged = by_message.setdefault(edit.message, [])
        if merged and edit.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, edit.end))
        else:
            merged.append(edit)
    return tuple(
        Message(role=message.role, content=_edited(message.content, by_message.get(index, [])))
        for index, message in enumerate(messages)
    )


def _edited(text: str, edits: list[Edit]) -> str:
    pieces, end = [], 0
    for edit in edits:
        pieces += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join((*pieces, text[end:]))
