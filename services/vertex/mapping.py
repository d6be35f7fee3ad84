"""Between our events and Google's types. Pure: values in, values out."""

from collections.abc import Sequence
from typing import Final

from google.genai import types

from schemas.requests import Message, Sampling
from schemas.stream import FinishReason, Usage
from services.worker.engine import Done, EngineError, Step

MOST_STOPS: Final = 5
"""Stop strings that the API takes."""

CHARS_PER_TOKEN: Final = 4
"""For chunks, of which the API tells no token count; the usage at the end is exact."""

_REFUSED: Final = frozenset({"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"})
_ENDS: Final[dict[str, FinishReason]] = {"STOP": "stop", "MAX_TOKENS": "length"}


def contents(messages: Sequence[Message]) -> tuple[str | None, list[types.Content]]:
    """System instruction and turns. A conversation of system messages alone becomes one user's turn."""
    system = [message.content for message in messages if message.role == "system"]
    turns = [
        types.Content(role="model" if message.role == "assistant" else "user", parts=[types.Part(text=message.content)])
        for message in messages
        if message.role != "system"
    ]
    if not turns:
        return None, [types.Content(role="user", parts=[types.Part(text=text)]) for text in system]
    return "\n\n".join(system) or None, turns


def config(sampling: Sampling, system: str | None, thinking_tokens: int) -> types.GenerateContentConfig:
    """How the answer is drawn.

    Raises:
        EngineError: ``bad_request``: more stop strings than the API takes.
    """
    if len(sampling.stop) > MOST_STOPS:
        raise EngineError("bad_request", f"Vertex AI takes at most {MOST_STOPS} stop strings", retryable=False)
    return types.GenerateContentConfig(
        system_instruction=system,
        max_output_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=None if sampling.seed is None else sampling.seed & 0x7FFFFFFF,  # the API's is a signed 32-bit number
        stop_sequences=list(sampling.stop) or None,
        thinking_config=None if thinking_tokens < 0 else types.ThinkingConfig(thinking_budget=thinking_tokens),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,  # a broken stream is the router's to decide about
    )


class Answer:
    """What was read of one answer so far."""

    __slots__ = ("_finish", "_usage", "said")

    def __init__(self) -> None:
        self.said = False
        self._finish: str | None = None
        self._usage = Usage()

    def read(self, response: types.GenerateContentResponse) -> Step | None:
        """The step in a response, if it has text; a thought is none.

        Raises:
            EngineError: ``safety_block``: prompt or answer was refused by a filter of Google's.
        """
        feedback = response.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            raise _blocked("the prompt", feedback.block_reason.value)
        if response.usage_metadata is not None:
            self._usage = _usage(response.usage_metadata)
        if not response.candidates:
            return None
        candidate = response.candidates[0]
        if candidate.finish_reason is not None:
            self._finish = str(candidate.finish_reason.value)
            if self._finish in _REFUSED:
                raise _blocked("the answer", self._finish)
        parts = (candidate.content.parts if candidate.content is not None else None) or ()
        text = "".join(part.text for part in parts if part.text and not part.thought)
        if not text:
            return None
        self.said = True
        return Step(text=text, tokens=max(1, len(text) // CHARS_PER_TOKEN))

    def end(self) -> Done:
        """The answer's end, once the stream is over.

        Raises:
            EngineError: The stream broke off, or ended for a reason that is no end.
        """
        if self._finish is None:
            raise EngineError("unavailable", "Vertex AI ended the stream before the answer", retryable=True)
        if self._finish not in _ENDS:
            raise EngineError("internal", f"Vertex AI ended the answer with {self._finish}", retryable=True)
        return Done(finish_reason=_ENDS[self._finish], usage=self._usage)


def _blocked(what: str, why: str) -> EngineError:
    return EngineError("safety_block", f"Vertex AI refused {what}: {why}", retryable=False)


def _usage(told: types.GenerateContentResponseUsageMetadata) -> Usage:
    """Thoughts are paid for like the answer."""
    return Usage(
        prompt_tokens=told.prompt_token_count or 0,
        completion_tokens=(told.candidates_token_count or 0) + (told.thoughts_token_count or 0),
        cached_tokens=told.cached_content_token_count or 0,
    )
