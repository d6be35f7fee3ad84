"""Parse one line of a job's input, in the format of OpenAI's Batch API."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from msgspec import Meta, Struct

from schemas.requests import Message, Sampling
from services.runtime.chat_body import REFUSED_UNLESS, BadBody, ChatBody, convert, refuse_unsupported

ENDPOINT: Final = "/v1/chat/completions"
MAX_LINE_BYTES: Final = 900_000
"""Maximum length of a line in bytes. It is limited because the request must fit into one Kafka record."""

CustomId = Annotated[str, Meta(min_length=1, max_length=512)]


class BadLine(Exception):
    """A line is not a valid request.

    Attributes:
        code: The error, as a code for programs.
        message: The error in one sentence, without text of the prompt.
        param: Path of the invalid field in the line, such as ``body.messages[0].role``.
        custom_id: The line's ``custom_id``; None if there is none.
    """

    def __init__(self, code: str, message: str, *, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id = custom_id


class _Line(Struct):
    custom_id: CustomId
    body: dict[str, Any]
    method: str = "POST"
    url: str = ENDPOINT


_REFUSED_UNLESS: Final = {**REFUSED_UNLESS, "stream": (None, False)}
"""Fields that are refused unless they have one of the given values. A line cannot request a stream, because its result
is a line of a file."""


@dataclass(frozen=True, slots=True)
class JobLine:
    custom_id: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling


def parse_line(raw: bytes) -> JobLine:
    """Parse and validate one line.

    Raises:
        BadLine: The line is not a valid request.
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
        line = convert(value, _Line)
        _check_target(line)
    except BadBody as bad:
        raise BadLine(bad.code, bad.message, param=bad.param, custom_id=custom_id) from None
    try:
        refuse_unsupported(line.body, _REFUSED_UNLESS)
        body = convert(line.body, ChatBody)
        return JobLine(line.custom_id, body.model or "default", body.prompt(), body.sampling())
    except BadBody as bad:
        param = bad.param and f"body.{bad.param}"
        raise BadLine(bad.code, bad.message, param=param, custom_id=custom_id) from None


def _check_target(line: _Line) -> None:
    if line.method != "POST":
        raise BadBody("method must be POST.", code="invalid_method", param="method")
    if line.url != ENDPOINT:
        raise BadBody(f"url must be {ENDPOINT}.", code="invalid_url", param="url")
