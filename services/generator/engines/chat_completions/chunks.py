"""Decode the server-sent events of a streamed chat completion."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from schemas.base import Count, Ms
from schemas.stream import ErrorClass, Speculation
from services.generator.engines.chat_completions.errors import upstream_error
from services.worker.engine import EngineError

MAX_LINE_BYTES: Final = 1_048_576
"""Maximum length of a line, in bytes. A longer line is an error."""

DONE: Final = b"[DONE]"


class ChunkDelta(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, gc=False):
    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Count | None = None


class ChunkUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class LlamaTimings(msgspec.Struct, frozen=True, gc=False):
    prompt_ms: Ms = 0.0
    predicted_ms: Ms = 0.0
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class VllmSpeculation(msgspec.Struct, frozen=True, gc=False):
    """vLLM's totals of speculative decoding for one answer.

    Attributes:
        acceptance_histogram: Entry j is the number of steps in which j drafted tokens were accepted.
    """

    num_spec_steps: Count = 0
    num_draft_tokens: Count = 0
    num_accepted_draft_tokens: Count = 0
    acceptance_histogram: list[Count] = []


class VllmMetrics(msgspec.Struct, frozen=True, gc=False):
    queue_time_ms: Ms | None = None
    speculative_decoding: VllmSpeculation | None = None


class CompletionChunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None
    error: Any = None


_decode = msgspec.json.Decoder(CompletionChunk).decode


class SseDecoder:
    """A decoder of server-sent events. Only the field ``data`` is decoded.

    Attributes:
        done: Whether ``[DONE]`` was received.
    """

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> Iterator[CompletionChunk]:
        """Yield the complete chunks. An incomplete line is kept for the next call.

        Raises:
            EngineError: The bytes are not a stream of chunks, or a chunk reports an error.
        """
        if self._rest:
            data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise EngineError(
                "internal", f"the upstream sent a line of more than {MAX_LINE_BYTES} bytes", retryable=True
            )
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == DONE:
                self.done = True
                return
            yield parse_chunk(payload)


def parse_chunk(payload: bytes) -> CompletionChunk:
    try:
        chunk = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError(
            "internal", "the upstream sent an event that is no chat completion chunk", retryable=True
        ) from None
    if chunk.error is not None:
        raise upstream_error(None, payload)
    return chunk


def speculation_totals(chunk: CompletionChunk) -> Speculation | None:
    """Return the numbers of drafted and accepted tokens; None if the server does not report them."""
    if chunk.metrics is not None and chunk.metrics.speculative_decoding is not None:
        totals = chunk.metrics.speculative_decoding
        histogram = totals.acceptance_histogram
        return Speculation(
            steps=totals.num_spec_steps,
            drafted=totals.num_draft_tokens,
            accepted=totals.num_accepted_draft_tokens,
            accepted_by_position=tuple(sum(histogram[j:]) for j in range(1, min(len(histogram), 65))),
        )
    if chunk.timings is not None and chunk.timings.draft_n:
        return Speculation(drafted=chunk.timings.draft_n, accepted=chunk.timings.draft_n_accepted)
    return None


ERROR_FINISH_REASONS: Final[dict[str, tuple[ErrorClass, str]]] = {
    "content_filter": ("safety_block", "the upstream's own content filter ended the answer"),
    "abort": ("unavailable", "the upstream aborted the answer"),
    "error": ("internal", "the upstream ended the answer with an error"),
}
"""The error class and message for each finish reason that means an incomplete answer."""
