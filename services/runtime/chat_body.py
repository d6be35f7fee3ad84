"""Parse and check the body of a chat completion request in OpenAI's format. No I/O."""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from schemas.base import Name
from schemas.requests import MAX_PROMPT_CHARS, Message, Sampling

T = TypeVar("T", bound=Struct)

Text = Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)]
StopText = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=1, le=131_072)]

MAX_QUOTED_CHARS: Final = 200
"""Maximum number of characters of the client's own text that an error repeats, such as the name of an unknown field."""

_CODES: Final = {
    "Expected `str` of length <= ": "string_above_max_length",
    "Object contains unknown field ": "unknown_parameter",
}
"""Error codes, by the beginning of msgspec's message. For any other message the code is ``invalid_value``."""


class BadBody(Exception):
    """The body is not a valid chat completion request.

    Attributes:
        message: Description of the error. It never contains prompt text.
        code: Error code for programs, such as ``unsupported_parameter``.
        param: Path of the invalid field in the body, such as ``messages[0].role``.
    """

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class TextPart(Struct, tag="text", tag_field="type"):
    """A text part of a message.

    Attributes:
        text: The text of this part.
    """

    text: Text


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """A part of an assistant's message in which the assistant refused to answer.

    Attributes:
        refusal: The text of the refusal.
    """

    refusal: Text


class ChatMessage(Struct):
    """One message of the conversation.

    Attributes:
        role: Author of the message. ``developer`` means the same as ``system``.
        content: The text of the message, or a list of text parts and refusals.
        name: Accepted and ignored.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=256)]
    name: str | None = None


class ChatBody(Struct):
    """The fields of a request body that affect the answer. A field that is ``null`` is treated as missing.

    Attributes:
        messages: The conversation, oldest message first.
        model: Name of the requested model. ``default`` means the model that the generator serves.
        max_tokens: Maximum length of the answer, in tokens.
        max_completion_tokens: The name that newer clients use for ``max_tokens``.
        temperature: Sampling temperature. With 0, the most likely token is always taken.
        top_p: Sample only from the most likely tokens whose probabilities add up to this value.
        stop: Texts that end the answer. They are not included in the answer.
        seed: Seed that makes sampling repeatable, if the engine supports it.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=256)]
    model: Name | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=8)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    def prompt(self) -> tuple[Message, ...]:
        """Return the messages of the conversation. The text parts of a message are joined by line breaks.

        Raises:
            BadBody: The joined text of a message is too long.
        """
        return tuple(Message(role=_role(turn), content=_text(turn)) for turn in self.messages)

    def sampling(self) -> Sampling:
        """Return the sampling parameters.

        Raises:
            BadBody: ``max_tokens`` and ``max_completion_tokens`` are both given and differ.
        """
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise BadBody("max_tokens and max_completion_tokens differ: send one of them.", param="max_tokens")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        chosen: dict[str, Any] = {
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": None if self.seed is None else self.seed % 2**32,
        }
        return Sampling(stop=stop, **{name: value for name, value in chosen.items() if value is not None})


REFUSED_UNLESS: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, 1),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "moderation": (None,),
}
"""Unsupported parameters that would change the answer, each with the values that have no effect.

A request is refused if one of these parameters has another value."""


def refuse_unsupported(body: dict[str, Any], refused: dict[str, tuple[Any, ...]] = REFUSED_UNLESS) -> None:
    """Reject a body that uses parameters that Railbus does not support.

    Raises:
        BadBody: The body uses such a parameter.
    """
    for name, without_effect in refused.items():
        if name in body and not any(_same(body[name], harmless) for harmless in without_effect):
            message = f"The parameter {name!r} is not supported here with this value: leave it out."
            raise BadBody(message, code="unsupported_parameter", param=name)


def convert(value: Any, cls: type[T]) -> T:
    """Validate a JSON value and convert it to an object of ``cls``.

    Raises:
        BadBody: The value does not fit the class.
    """
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None


def _same(value: Any, other: Any) -> bool:
    # In Python, 1 equals True; in JSON, it does not.
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _role(turn: ChatMessage) -> Any:
    return "system" if turn.role == "developer" else turn.role


def _text(turn: ChatMessage) -> str:
    if isinstance(turn.content, str):
        return turn.content
    text = "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in turn.content)
    if len(text) > MAX_PROMPT_CHARS:
        message = "A message may have at most 262,144 characters in all its parts."
        raise BadBody(message, code="string_above_max_length", param="messages")
    return text


def _field_error(error: str) -> BadBody:
    what, _, path = error.partition(" - at `")
    param = path.rstrip("`").removeprefix("$.").removeprefix("$") or None
    if param is None and "field `" in what:
        param = what.rpartition("field `")[2].rstrip("`")
    what, param = _clipped(what), None if param is None else _clipped(param)
    hint = " Only text parts are supported." if param is not None and param.endswith("].type") else ""
    code = next((code for begin, code in _CODES.items() if what.startswith(begin)), "invalid_value")
    return BadBody(f"{what}{f' at {param}' if path else ''}.{hint}", code=code, param=param)


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."
