"""Decode the stream of an OpenAI-compatible server. It consists of server-sent events with one JSON object each."""

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
    """The text that a chunk adds to the answer."""

    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, gc=False):
    """One of the requested answers. Railbus always requests exactly one."""

    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    """Breakdown of the number of prompt tokens."""

    cached_tokens: Count | None = None


class ChunkUsage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of the answer so far. The last chunk has the counts of the whole answer."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class LlamaTimings(msgspec.Struct, frozen=True, gc=False):
    """llama.cpp's measurements of a complete answer."""

    prompt_ms: Ms = 0.0
    predicted_ms: Ms = 0.0
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class VllmSpeculation(msgspec.Struct, frozen=True, gc=False):
    """vLLM's speculation totals of one answer. Entry j of the histogram counts the steps that accepted j tokens."""

    num_spec_steps: Count = 0
    num_draft_tokens: Count = 0
    num_accepted_draft_tokens: Count = 0
    acceptance_histogram: list[Count] = []


class VllmMetrics(msgspec.Struct, frozen=True, gc=False):
    """vLLM's measurements of a complete answer."""

    queue_time_ms: Ms | None = None
    speculative_decoding: VllmSpeculation | None = None


class CompletionChunk(msgspec.Struct, frozen=True, gc=False):
    """The fields of a chunk that Railbus reads."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None
    error: Any = None


_decode = msgspec.json.Decoder(CompletionChunk).decode


class SseDecoder:
    """A decoder of server-sent events. It ignores comments, empty lines and fields other than ``data``.

    Attributes:
        done: Whether the server sent ``[DONE]``.
    """

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> Iterator[CompletionChunk]:
        """Yield the chunks that are complete after these bytes. Bytes of an incomplete line are kept for the next call.

        Raises:
            EngineError: The bytes are not a stream of chunks. The error class is ``internal``.
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
    """Parse the data of an event as a chunk.

    Raises:
        EngineError: The data is not a chunk, or the server reports an error in it.
    """
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
    """Return the totals of drafted and accepted tokens, or None if the server does not report them."""
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
