"""Parse scripts, which say how the emulator answers. The model name of a request is its script. No I/O, no clock.

Example: ``emulated-n50-ttft300`` generates 50 words and sends the first after 300 ms. The parts may be in any order::

    n<k>       generate k words, or maxOutputTokens words if that is less
    ttft<ms>   send the first word after this time
    tail<ms>   add a random delay before the first word (Lomax distribution with shape 1.5 and this scale)
    gap<ms>    wait this time between two words
    err<code>  refuse with this HTTP status
    wait<s>    send Retry-After with this number of seconds in the refusal
    heal<k>    refuse the first k requests only
    bad        send an answer that is not JSON
    die<k>     close the connection after k words
    stall<k>   send nothing more after k words, and keep the connection open
    fault<k>   send an error in the stream after k words
    empty<k>   send k responses without text before the first word
    shut       report that a safety filter blocked the prompt
    block<k>   report, after k words, that a safety filter blocked the answer

A model name that does not begin with ``emulated`` gets the server's default script. An unknown part is an error.
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
class EmulatorScript:
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

    def first_s(self, rng: random.Random) -> float:
        """Return the delay of the first word in seconds: ``ttft`` plus a random delay.

        The random delay has a Lomax distribution with scale ``tail``. ``ttft`` and ``tail`` are in milliseconds.
        """
        tail = self.tail * (float((1 - rng.random()) ** (-1 / _SHAPE)) - 1)
        return (self.ttft + tail) / 1_000


def parse_script(model: str, default: EmulatorScript) -> EmulatorScript:
    """Return the script in a model name such as ``emulated-n50``; ``default`` if the name contains no script.

    Raises:
        ValueError: The script has an unknown part.
    """
    head, *parts = model.split("-")
    if head != PREFIX:
        return default
    known = {field.name for field in fields(EmulatorScript)}
    values: dict[str, int] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or match[1] not in known:
            msg = f"{part!r} in model {model[:100]!r}: the parts are {', '.join(sorted(known))}, each with a number"
            raise ValueError(msg)
        values[match[1]] = int(match[2] or 1)
    return replace(default, **values)


def word(index: int) -> str:
    return _WORDS[index % len(_WORDS)].capitalize() if index == 0 else " " + _WORDS[index % len(_WORDS)]


def response(text: str | None, *, finish: str | None = None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if text is not None:
        candidate["content"] = {"role": "model", "parts": [{"text": text}]}
    if finish is not None:
        candidate["finishReason"] = finish
    body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "emulated"}
    if usage is not None:
        body["usageMetadata"] = usage
    return body


def usage(prompt: int, generated: int) -> dict[str, int]:
    return {"promptTokenCount": prompt, "candidatesTokenCount": generated, "totalTokenCount": prompt + generated}


def error(code: int, wait_s: int | None = None, message: str = "scripted") -> dict[str, Any]:
    body: dict[str, Any] = {"code": code, "message": message, "status": STATUS.get(code, "UNKNOWN")}
    if wait_s is not None:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        body["details"] = [{"@type": kind, "retryDelay": f"{wait_s}s"}]
    return {"error": body}
