"""Compute what the test model server sends for a request, and when. The name of the requested model determines both.

This module does no I/O and reads no clock.

The name consists of ``fake``, a tag and any number of settings, such as ``fake-A-t30-g20-n50``. These are all settings:

    t30     prefill takes 30 ms, whatever the length of the prompt
    p100    prefill takes 100 microseconds more for each token of the prompt (a token is four characters)
    g20     after the first chunk, a chunk follows every 20 ms
    n50     the answer has 50 chunks
    j25     each gap is up to 25 % shorter or longer, at random; seed and prompt determine the random numbers
    s7      the seed is 7
    h0      the head of the response is sent at once; h500: after half a second; without h: with the first chunk
    role    right after the head, a chunk with the role and without text is sent
    ka      until the first token, a comment is sent every 100 ms (a keep-alive)
    empty   until the first token, a chunk without text is sent every 100 ms
    stall10 five seconds of silence precede chunk 10
    close10 the connection is reset after 10 chunks
    err503  the response has the status 503 and no answer

The text of chunk 7 of tag ``A`` is ``A007``, so that a reader can tell who answered and whether a chunk is missing.
"""

import json
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TOKEN_CHARS: Final = 4
STALL_MS: Final = 5_000
SIGN_OF_LIFE_MS: Final = 100
"""Time between two keep-alives, or between two chunks without text."""

MODELS: Final = ("fake-A",)
"""The models that the server lists. Clients that name no model take the first one."""

_KEYS: Final = {
    "t": "prefill_ms",
    "p": "prefill_us_per_token",
    "g": "gap_ms",
    "n": "chunks",
    "j": "jitter_percent",
    "s": "seed",
    "h": "head_ms",
    "stall": "stall_at",
    "close": "close_after",
    "err": "error_status",
}
_FLAGS: Final = {"role": "role_first", "ka": "keep_alive", "empty": "empty_chunks"}
_LIMITS: Final = {"chunks": (1, 100_000), "jitter_percent": (0, 100), "error_status": (400, 599)}
_MOST: Final = 3_600_000


class ScheduleError(ValueError):
    """The name of the requested model does not describe a valid schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action of the server, ``at_ms`` after the request: it sends ``data``, or it resets the connection.

    ``chunks`` is the number of chunks with text in ``data``.
    """

    at_ms: float
    data: bytes = b""
    chunks: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times and faults of one answer."""

    tag: str = "A"
    prefill_ms: int = 30
    prefill_us_per_token: int = 0
    gap_ms: int = 20
    chunks: int = 50
    jitter_percent: int = 0
    seed: int = 0
    head_ms: int | None = None
    role_first: bool = False
    keep_alive: bool = False
    empty_chunks: bool = False
    stall_at: int | None = None
    close_after: int | None = None
    error_status: int | None = None

    @property
    def text(self) -> str:
        """The text of the whole answer."""
        return "".join(self.word(number) for number in range(self.chunks))

    def word(self, number: int) -> str:
        """Return the text of the chunk with this number."""
        return f"{self.tag}{number:03d} "

    def first_ms(self, prompt: str) -> float:
        """Return the time from the request to the first chunk, in milliseconds."""
        return self.prefill_ms + self.prefill_us_per_token * tokens(prompt) / 1e3

    def due_ms(self, prompt: str) -> Iterator[float]:
        """Yield the time from the request to each chunk, in milliseconds.

        The same schedule and prompt always give the same times.
        """
        at_ms = self.first_ms(prompt)
        dice = random.Random(zlib.crc32(prompt.encode()) + (self.seed << 32))
        spread = self.jitter_percent / 100
        for number in range(self.chunks):
            if number:
                at_ms += self.gap_ms * (dice.uniform(1 - spread, 1 + spread) if spread else 1)
            if number == self.stall_at:
                at_ms += STALL_MS
            yield at_ms


def parse_schedule(model: str) -> Schedule:
    """Read a schedule from a model's name.

    Raises:
        ScheduleError: The name does not begin with ``fake``, or its tag or one of its settings is invalid.
    """
    prefix, *parts = model.split("-")
    if prefix != "fake":
        raise ScheduleError(f"no model {model!r}: names begin with fake, such as fake-A-t30-g20-n50")
    found: dict[str, int | bool | str] = {}
    if parts:
        if not re.fullmatch(r"[A-Za-z0-9]{1,32}", parts[0]):
            raise ScheduleError(f"model {model!r}: the tag {parts[0]!r} is not of letters and digits")
        found["tag"] = parts[0]
    for part in parts[1:]:
        if part in _FLAGS:
            found[_FLAGS[part]] = True
            continue
        match = re.fullmatch(r"([a-z]+)([0-9]{1,9})", part)
        if match is None or match[1] not in _KEYS:
            raise ScheduleError(f"model {model!r}: {part!r} is no setting")
        name, value = _KEYS[match[1]], int(match[2])
        low, high = _LIMITS.get(name, (0, _MOST))
        if not low <= value <= high:
            raise ScheduleError(f"model {model!r}: {part!r} is not between {low} and {high}")
        found[name] = value
    return Schedule(**found)  # type: ignore[arg-type]


def tokens(text: str) -> int:
    """Return the estimated number of tokens of a text."""
    return -(-len(text) // TOKEN_CHARS)


HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST: Final = b"0\r\n\r\n"


def streamed(schedule: Schedule, model: str, prompt: str, number: int, *, usage: bool = False) -> Iterator[Step]:
    """Yield the steps of a streamed response, in the order of their times.

    Args:
        schedule: The times and faults of the answer.
        model: Name of the requested model. The chunks contain this name.
        prompt: The whole text of the request.
        number: Number of the answer. The answer's id contains it.
        usage: Whether to send the numbers of tokens in an event before ``[DONE]``.
    """
    begin, end = _around(model, number)
    head = HEAD
    first_ms = schedule.first_ms(prompt)
    role = _framed(begin + b'{"role":"assistant","content":""}' + end)
    if schedule.head_ms is not None or schedule.role_first:
        at_ms = schedule.head_ms or 0
        yield Step(at_ms=at_ms, data=head + (role if schedule.role_first else b""))
        head, first_ms = b"", max(first_ms, at_ms)
    sign = _framed(b": keep-alive\n\n") if schedule.keep_alive else role if schedule.empty_chunks else b""
    at_ms = float((schedule.head_ms or 0) + SIGN_OF_LIFE_MS)
    while sign and at_ms < first_ms:
        yield Step(at_ms=at_ms, data=head + sign)
        head = b""
        at_ms += SIGN_OF_LIFE_MS
    for index, due_ms in enumerate(schedule.due_ms(prompt)):
        at_ms = max(due_ms, first_ms)
        if index == schedule.close_after:
            yield Step(at_ms=at_ms, reset=True)
            return
        delta = b'{"role":"assistant","content":"%b"}' if index == 0 else b'{"content":"%b"}'
        chunk = _framed(begin + delta % schedule.word(index).encode() + end)
        yield Step(at_ms=at_ms, data=head + chunk, chunks=1)
        head = b""
    closing = begin + b"{}" + end.replace(b"null", b'"stop"')
    if usage:
        closing += (
            b"data: " + _json(_event(model, number) | {"choices": [], "usage": _usage(schedule, prompt)}) + b"\n\n"
        )
    yield Step(at_ms=at_ms, data=_framed(closing) + _framed(b"data: [DONE]\n\n") + LAST)


def whole(schedule: Schedule, model: str, prompt: str, number: int) -> Step:
    """Return the step that sends the whole answer as one JSON object, for a request that does not ask for a stream.

    The step is due when the last chunk of a streamed answer would be due.
    """
    *_, at_ms = schedule.due_ms(prompt)
    message = {"role": "assistant", "content": schedule.text}
    body = _event(model, number) | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": _usage(schedule, prompt),
    }
    return Step(at_ms=at_ms, data=json_response(200, body), chunks=schedule.chunks)


def refused(status: int, message: str) -> bytes:
    """Return an HTTP response with an error in OpenAI's format."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return json_response(status, {"error": {"message": message, "type": kind, "code": status}})


def json_response(status: int, body: object) -> bytes:
    """Return an HTTP response with a JSON body."""
    data = _json(body)
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def _usage(schedule: Schedule, prompt: str) -> dict[str, int]:
    asked = tokens(prompt)
    return {
        "prompt_tokens": asked,
        "completion_tokens": schedule.chunks,
        "total_tokens": asked + schedule.chunks,
    }


def _event(model: str, number: int) -> dict[str, object]:
    return {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}


def _around(model: str, number: int) -> tuple[bytes, bytes]:
    """Return the bytes that precede and follow the delta in each event of an answer."""
    event = _event(model, number) | {"choices": [{"index": 0, "delta": "?", "finish_reason": None}]}
    begin, end = (b"data: " + _json(event) + b"\n\n").rsplit(b'"?"', 1)
    return begin, end


def _framed(data: bytes) -> bytes:
    """Return the data as one chunk of HTTP's chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
