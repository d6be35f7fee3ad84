"""Convert between Railbus's types and the JSON of Vertex AI's ``streamGenerateContent``."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas.requests import Message, Sampling
from schemas.stream import FinishReason, Usage
from services.worker.engine import EngineError, EngineStep, GenerationResult

MAX_STOP_SEQUENCES: Final = 5
"""Maximum number of stop strings that the API accepts."""

CHARS_PER_TOKEN: Final = 4
"""Number of characters that count as one token of the prompt or of a chunk, because Vertex AI may report token counts
only at the end of the answer. Those counts are exact."""

_REFUSED: Final = frozenset({"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"})
_ENDS: Final[dict[str, FinishReason]] = {"STOP": "stop", "MAX_TOKENS": "length"}


def request_body(
    messages: Sequence[Message], sampling: Sampling, *, thinking_tokens: int, max_output_tokens: int
) -> dict[str, Any]:
    """Return the JSON body of a request to Vertex AI.

    Args:
        messages: The conversation, oldest first. Messages without text are left out, because the API refuses them.
        sampling: How the model chooses tokens.
        thinking_tokens: Maximum number of tokens for reasoning; -1 lets the model choose.
        max_output_tokens: Largest ``maxOutputTokens`` that the API accepts. It replaces a larger ``max_tokens``.

    Raises:
        EngineError: There are more than ``MAX_STOP_SEQUENCES`` stop strings, or no message has text.
    """
    if len(sampling.stop) > MAX_STOP_SEQUENCES:
        raise EngineError(
            "bad_request", f"Vertex AI accepts at most {MAX_STOP_SEQUENCES} stop strings", retryable=False
        )
    messages = [message for message in messages if message.content]
    if not messages:
        raise EngineError(
            "bad_request", "Vertex AI needs at least one message with text", retryable=False, param="messages"
        )
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
        "maxOutputTokens": min(sampling.max_tokens, max_output_tokens),
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
    }
    if sampling.seed is not None:
        config["seed"] = sampling.seed & 0x7FFFFFFF  # the API takes a signed 32-bit number
    if sampling.stop:
        config["stopSequences"] = list(sampling.stop)
    if thinking_tokens >= 0:
        config["thinkingConfig"] = {"thinkingBudget": thinking_tokens}
    return body | {"generationConfig": config}


class CandidatePart(msgspec.Struct):
    """A piece of generated text. If ``thought`` is true, the piece does not belong to the answer."""

    text: str = ""
    thought: bool = False


class CandidateContent(msgspec.Struct):
    parts: list[CandidatePart] = []


class Candidate(msgspec.Struct, rename="camel"):
    content: CandidateContent | None = None
    finish_reason: str | None = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class UsageMetadata(msgspec.Struct, rename="camel"):
    prompt_token_count: int = 0
    candidates_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0


class GenerateContentResponse(msgspec.Struct, rename="camel"):
    candidates: list[Candidate] = []
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None


_decoder: Final = msgspec.json.Decoder(GenerateContentResponse)


class GenerateContentParser:
    __slots__ = ("_finish", "_prompt_tokens", "_usage")

    def __init__(self, prompt_chars: int = 0) -> None:
        self._prompt_tokens = prompt_chars // CHARS_PER_TOKEN
        self._finish: str | None = None
        self._usage = Usage()

    def read(self, data: str) -> EngineStep | None:
        """Parse one response. Return its text as a step, or None if it has no text.

        Raises:
            EngineError: Google's safety filter refused the prompt or the answer, or the JSON is malformed.
        """
        try:
            response = _decoder.decode(data)
        except msgspec.DecodeError:
            raise EngineError("internal", "Vertex AI sent an unreadable response", retryable=True) from None
        if response.prompt_feedback is not None and response.prompt_feedback.block_reason is not None:
            raise _blocked("the prompt", response.prompt_feedback.block_reason)
        if response.usage_metadata is not None:
            self._usage = _usage(response.usage_metadata)
        if not response.candidates:
            return None
        candidate = response.candidates[0]
        if candidate.finish_reason is not None:
            self._finish = candidate.finish_reason
            if self._finish in _REFUSED:
                raise _blocked("the answer", self._finish)
        parts = candidate.content.parts if candidate.content is not None else ()
        text = "".join(part.text for part in parts if not part.thought)
        if not text:
            return None
        prompt_tokens = self._usage.prompt_tokens or self._prompt_tokens
        return EngineStep(text=text, tokens=max(1, len(text) // CHARS_PER_TOKEN), prompt_tokens=prompt_tokens)

    def end(self) -> GenerationResult:
        """Return the result of the answer. Call this after the last response.

        Raises:
            EngineError: The answer is incomplete.
        """
        if self._finish is None:
            raise EngineError(
                "unavailable", "Vertex AI ended the stream before the answer was complete", retryable=True
            )
        if self._finish not in _ENDS:
            raise EngineError("internal", f"Vertex AI ended the answer with {self._finish[:40]}", retryable=True)
        return GenerationResult(finish_reason=_ENDS[self._finish], usage=self._usage)


def _part(message: Message) -> dict[str, str]:
    return {"text": message.content}


def _blocked(what: str, why: str) -> EngineError:
    return EngineError("safety_block", f"Vertex AI refused {what}: {why[:40]}", retryable=False)


def _usage(metadata: UsageMetadata) -> Usage:
    return Usage(
        prompt_tokens=metadata.prompt_token_count,
        # Tokens of thoughts are included, because they cost as much as tokens of the answer.
        completion_tokens=metadata.candidates_token_count + metadata.thoughts_token_count,
        cached_tokens=metadata.cached_content_token_count,
    )
