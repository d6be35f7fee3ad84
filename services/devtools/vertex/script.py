"""What an emulated answer is made to do, written as the model's name. Pure.

``emulated-n50-ttft300`` says 50 words, the first after 300 ms. The parts, in any order::

    n<k>       k words, unless maxOutputTokens ends it sooner
    ttft<ms>   the first word so late
    tail<ms>   the first word later by a heavy-tailed time (Lomax, shape 1.5) of this scale
    gap<ms>    each further word so late
    err<code>  refuses with this HTTP status
    wait<s>    the refusal asks to retry after so many seconds
    heal<k>    refuses the first k requests only
    bad        the answer is not JSON
    die<k>     breaks the connection off after k words
    stall<k>   silence after k words, for ever
    fault<k>   an error in the stream after k words
    empty<k>   k frames without text come before the first word
    shut       the prompt is blocked by a safety filter
    block<k>   the answer is blocked by a safety filter after k words

Any other model name answers as the server's defaults say.
"""

import random
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Final

PREFIX: Final = "emulated"

_SHAPE: Final = 1.5
_PART: Final = re.compile(r"([a-z]+)(\d{0,7})")
_WORDS: Final = tuple("the cloud answers in place of the engine that was late so that nobody waits for it".split())  # noqa: SIM905

STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Parts as above; None where nothing is said."""

    n: int = 40
    ttft: int = 30
    tail: int = 0
    gap: int = 10
    err: int | None = None
    wait: int | None = None
    heal: int | None = None
    bad: int | None = None
    die: int | None = None
    stall: int | None = None
    fault: int | None = None
    empty: int = 0
    shut: int | None = None
    block: int | None = None

    def first_s(self, draw: random.Random) -> float:
        """When the first word comes, in seconds."""
        tail = self.tail * (float((1 - draw.random()) ** (-1 / _SHAPE)) - 1)
        return (self.ttft + tail) / 1_000


def parse(model: str, default: Script) -> Script:
    """The script of a model.

    Raises:
        ValueError: A part is not known; the message names it.
    """
    head, *parts = model.split("-")
    if head != PREFIX:
        return default
    known = {field.name for field in fields(Script)}
    said: dict[str, int] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or match[1] not in known:
            msg = f"{part!r} in model {model[:100]!r}: the parts are {', '.join(sorted(known))}, each with a number"
            raise ValueError(msg)
        said[match[1]] = int(match[2] or 1)
    return replace(default, **said)


def word(index: int) -> str:
    """The answer's word of this place, with the space before it."""
    return _WORDS[index % len(_WORDS)].capitalize() if index == 0 else " " + _WORDS[index % len(_WORDS)]


def frame(text: str | None, *, finish: str | None = None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    """One ``GenerateContentResponse``."""
    candidate: dict[str, Any] = {"index": 0}
    if text is not None:
        candidate["content"] = {"role": "model", "parts": [{"text": text}]}
    if finish is not None:
        candidate["finishReason"] = finish
    response: dict[str, Any] = {"candidates": [candidate], "modelVersion": "emulated"}
    if usage is not None:
        response["usageMetadata"] = usage
    return response


def usage(prompt: int, said: int) -> dict[str, int]:
    """``usageMetadata``."""
    return {"promptTokenCount": prompt, "candidatesTokenCount": said, "totalTokenCount": prompt + said}


def error(code: int, wait_s: int | None = None, message: str = "scripted") -> dict[str, Any]:
    """An error's body, as Google's APIs write it."""
    body: dict[str, Any] = {"code": code, "message": message, "status": STATUS.get(code, "UNKNOWN")}
    if wait_s is not None:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        body["details"] = [{"@type": kind, "retryDelay": f"{wait_s}s"}]
    return {"error": body}
