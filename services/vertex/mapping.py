"""Between our events and the JSON of Vertex AI's ``streamGenerateContent``. Pure: values in, values out."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas.requests import Message, Sampling
from schemas.stream import FinishReason, Usage
from services.worker.engine import Done, EngineError, Step

MOST_STOPS: Final = 5
"""Stop strings that the API takes."""

CHARS_PER_TOKEN: Final = 4
"""For chunks, of which the API tells no token count; the usage at the end is exact."""

_REFUSED: Final = frozenset({"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"})
_ENDS: Final[dict[str, FinishReason]] = {"STOP": "stop", "MAX_TOKENS": "length"}


def body_of(messages: Sequence[Message], sampling: Sampling, thinking_tokens: int) -> dict[str, Any]:
    """The request's body. System messages stand apart; a conversation of them alone becomes the user's turn.

    Raises:
        EngineError: ``bad_request``: more stop strings than the API takes.
    """
    if len(sampling.stop) > MOST_STOPS:
        raise EngineError("bad_request", f"Vertex AI takes at most {MOST_STOPS} stop strings", retryable=False)
    system = [_part(message) for message in messages if message.role == "system"]
    turns = [
        {"role": "model" if message.role == "assistant" else "user", "parts": [_part(message)]}
        for message in messages
        if message.role != "system"
    ]
    body: dict[str, Any] = {"contents": turns or [{"role": "user", "parts": system}]}
    if system and turns:
        body["systemInstruction"] = {"parts": system}
    config: dict[str, Any] = {
        "maxOutputTokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
    }
    if sampling.seed is not None:
        config["seed"] = sampling.seed & 0x7FFFFFFF  # the API's is a signed 32-bit number
    if sampling.stop:
        config["stopSequences"] = list(sampling.stop)
    if thinking_tokens >= 0:
        config["thinkingConfig"] = {"thinkingBudget": thinking_tokens}
    return body | {"generationConfig": config}


class Part(msgspec.Struct):
    """A piece of content; a ``thought`` is not for the user."""

    text: str = ""
    thought: bool = False


class Content(msgspec.Struct):
    """What a candidate says."""

    parts: list[Part] = []


class Candidate(msgspec.Struct, rename="camel"):
    """One answer; we ask for one."""

    content: Content | None = None
    finish_reason: str | None = None


class Feedback(msgspec.Struct, rename="camel"):
    """Of the prompt."""

    block_reason: str | None = None


class Metadata(msgspec.Struct, rename="camel"):
    """Token counts, running totals."""

    prompt_token_count: int = 0
    candidates_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0


class Frame(msgspec.Struct, rename="camel"):
    """One ``GenerateContentResponse``, as far as we read it."""

    candidates: list[Candidate] = []
    prompt_feedback: Feedback | None = None
    usage_metadata: Metadata | None = None


_decoder: Final = msgspec.json.Decoder(Frame)


class Answer:
    """What was read of one answer so far."""

    __slots__ = ("_finish", "_usage")

    def __init__(self) -> None:
        self._finish: str | None = None
        self._usage = Usage()

    def read(self, data: str) -> Step | None:
        """The step in a frame's JSON, if it has text.

        Raises:
            EngineError: ``safety_block``: prompt or answer was refused by a filter of Google's; ``internal``: it is not
                a frame.
        """
        try:
            frame = _decoder.decode(data)
        except msgspec.DecodeError:
            raise EngineError("internal", "Vertex AI sent what is not its protocol", retryable=True) from None
        if frame.prompt_feedback is not None and frame.prompt_feedback.block_reason is not None:
            raise _blocked("the prompt", frame.prompt_feedback.block_reason)
        if frame.usage_metadata is not None:
            self._usage = _usage(frame.usage_metadata)
        if not frame.candidates:
            return None
        candidate = frame.candidates[0]
        if candidate.finish_reason is not None:
            self._finish = candidate.finish_reason
            if self._finish in _REFUSED:
                raise _blocked("the answer", self._finish)
        parts = candidate.content.parts if candidate.content is not None else ()
        text = "".join(part.text for part in parts if not part.thought)
        return Step(text=text, tokens=max(1, len(text) // CHARS_PER_TOKEN)) if text else None

    def end(self) -> Done:
        """The answer's end, once the stream is over.

        Raises:
            EngineError: The stream broke off, or ended for a reason that is no end.
        """
        if self._finish is None:
            raise EngineError("unavailable", "Vertex AI ended the stream before the answer", retryable=True)
        if self._finish not in _ENDS:
            raise EngineError("internal", f"Vertex AI ended the answer with {self._finish[:40]}", retryable=True)
        return Done(finish_reason=_ENDS[self._finish], usage=self._usage)


def _part(message: Message) -> dict[str, str]:
    return {"text": message.content}


def _blocked(what: str, why: str) -> EngineError:
    return EngineError("safety_block", f"Vertex AI refused {what}: {why[:40]}", retryable=False)


def _usage(told: Metadata) -> Usage:
    """Thoughts are paid for like the answer."""
    return Usage(
        prompt_tokens=told.prompt_token_count,
        completion_tokens=told.candidates_token_count + told.thoughts_token_count,
        cached_tokens=told.cached_content_token_count,
    )
