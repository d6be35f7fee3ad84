"""One line of a job's input, in the form of OpenAI's Batch API. Pure; what is wrong with it is one ``BadLine``."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from msgspec import Meta, Struct

from schemas.base import Name
from schemas.requests import MAX_PROMPT_CHARS, Message, Sampling

ENDPOINT: Final = "/v1/chat/completions"
MAX_LINE_BYTES: Final = 900_000
"""Longest line: its request must fit into a record of the log."""

MAX_QUOTED_CHARS: Final = 100

Text = Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]
StopText = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=1, le=131_072)]
CustomId = Annotated[str, Meta(min_length=1, max_length=512)]


class BadLine(Exception):
    """A line is no request. The message never repeats a prompt."""

    def __init__(self, code: str, message: str, *, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id = custom_id


class _TextPart(Struct):
    text: Text
    type: Literal["text"] = "text"


class _Message(Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[_TextPart], Meta(min_length=1, max_length=256)]


class _Body(Struct):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=256)]
    model: Name | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=8)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


class _Line(Struct):
    custom_id: CustomId
    body: dict[str, Any]
    method: str = "POST"
    url: str = ENDPOINT


UNSUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "stream": (None, False),
    "n": (None, 1),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
"""Parameters that would change the answer: refused, except with these values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A line that is a request."""

    custom_id: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling


def parse_line(raw: bytes) -> JobLine:
    """Parse and validate one line.

    Raises:
        BadLine: It is no request.
    """
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine("line_too_long", f"The line is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine("invalid_json_line", f"The line is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", "The line must be a JSON object.")
    given = value.get("custom_id")
    custom_id = given if isinstance(given, str) else None
    try:
        line = msgspec.convert(value, _Line)
        _check_supported(line)
        body = msgspec.convert(line.body, _Body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), custom_id) from None
    except BadLine as bad:
        bad.custom_id = custom_id
        raise
    return JobLine(
        custom_id=line.custom_id,
        model=body.model or "default",
        messages=tuple(Message(role=_role(turn.role), content=_text(turn)) for turn in body.messages),
        sampling=_sampling(body),
    )


def _check_supported(line: _Line) -> None:
    if line.method != "POST":
        raise BadLine("invalid_method", "method must be POST.", param="method")
    if line.url != ENDPOINT:
        raise BadLine("invalid_url", f"url must be {ENDPOINT}.", param="url")
    for name, harmless in UNSUPPORTED.items():
        if name in line.body and line.body[name] not in harmless:
            message = f"The parameter {name!r} is not supported here: leave it out."
            raise BadLine("unsupported_parameter", message, param=f"body.{name}")


def _role(role: str) -> Any:
    return "system" if role == "developer" else role


def _text(turn: _Message) -> str:
    if isinstance(turn.content, str):
        return turn.content
    return "\n".join(part.text for part in turn.content)[:MAX_PROMPT_CHARS]


def _sampling(body: _Body) -> Sampling:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    chosen: dict[str, Any] = {
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": None if body.seed is None else body.seed % 2**32,
    }
    return Sampling(stop=stop, **{name: value for name, value in chosen.items() if value is not None})


def _invalid(error: str, custom_id: str | None) -> BadLine:
    """Convert the library's message, ``Expected `str`, got `int` - at `$.messages[0].role```."""
    what, _, path = error.partition(" - at `")
    param = path.rstrip("`").removeprefix("$.").removeprefix("$") or None
    if param is None and "field `" in what:
        param = what.rpartition("field `")[2].rstrip("`")
    return BadLine(
        "invalid_value", f"{what[:MAX_QUOTED_CHARS]}{f' at {param[:MAX_QUOTED_CHARS]}' if path and param else ''}.",
        param=param and param[:MAX_QUOTED_CHARS], custom_id=custom_id,
    )  # fmt: skip
