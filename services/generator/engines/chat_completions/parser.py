"""Build the request for a streamed chat completion, and parse the streamed answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from schemas.stream import FinishReason, Timings, Usage
from services.generator.engines.chat_completions.chunks import (
    ERROR_FINISH_REASONS,
    ChunkUsage,
    CompletionChunk,
    speculation_totals,
)
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job

_ENDS: Final[dict[str, FinishReason]] = {"length": "length", "max_tokens": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A chat completions endpoint.

    Attributes:
        url: URL of ``/chat/completions``.
        step_usage: Whether to ask the server to report, with every chunk, how many tokens the answer has so far. If
            False, each chunk counts as one token.
        extra: Fields to add to each request's body. A field that Railbus sets itself is not overridden.
    """

    url: str
    step_usage: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def request_body(job: Job, endpoint: Endpoint, *, usage: bool) -> bytes:
    """Return the JSON body of a request. If ``usage`` is true, the server is asked for token counts."""
    sampling = job.sampling
    body: dict[str, Any] = {
        **endpoint.extra,
        "model": job.model,
        "messages": [{"role": each.role, "content": each.content} for each in job.messages],
        "stream": True,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = sampling.stop
    if usage:
        body["stream_options"] = {"include_usage": True}
        if endpoint.step_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    return orjson.dumps(body)


class CompletionParser:
    __slots__ = ("_counted", "_finish", "_first_at", "_last", "_last_at", "_sent_at", "_usage")

    def __init__(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self._first_at = self._last_at = 0.0
        self._counted = 0
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._last: CompletionChunk | None = None

    @property
    def complete(self) -> bool:
        return self._finish is not None

    def read(self, chunk: CompletionChunk, now: float) -> EngineStep | None:
        """Return the engine step in a chunk; None if the chunk has no text. ``now`` is a monotonic time in seconds.

        Raises:
            EngineError: The finish reason means that the answer is incomplete.
        """
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        if chunk.metrics is not None or chunk.timings is not None:
            self._last = chunk
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        if choice.finish_reason:  # some servers send an empty one with every chunk before the end
            failure = ERROR_FINISH_REASONS.get(choice.finish_reason)
            if failure is not None:
                raise EngineError(*failure, retryable=failure[0] != "safety_block")
            self._finish = choice.finish_reason
        text = choice.delta.content if choice.delta is not None else None
        if not text:
            return None
        if not self._first_at:
            self._first_at = now
        self._last_at = now
        return EngineStep(text=text, tokens=self._tokens(chunk))

    def end(self, *, stream_done: bool) -> GenerationResult:
        """Return the result of the generation. ``stream_done`` says whether the server has sent ``[DONE]``.

        Raises:
            EngineError: The answer is incomplete (``error_class`` is ``unavailable``).
        """
        if self._finish is None and not (stream_done and self._first_at):
            raise EngineError(
                "unavailable", "the upstream ended the stream before the answer was complete", retryable=True
            )
        return GenerationResult(
            finish_reason=_ENDS.get(self._finish or "", "stop"),
            usage=self._usage or Usage(completion_tokens=self._counted),
            timings=self._timings(),
            speculation=None if self._last is None else speculation_totals(self._last),
        )

    def _tokens(self, chunk: CompletionChunk) -> int:
        # Without a token count in the chunk, the chunk is counted as one token.
        tokens = 1 if chunk.usage is None else max(0, chunk.usage.completion_tokens - self._counted)
        self._counted += tokens
        return tokens

    def _timings(self) -> Timings:
        first_ms = max(0.0, self._first_at - self._sent_at) * 1e3 if self._first_at else 0.0
        decode_ms = (self._last_at - self._first_at) * 1e3
        queue_ms = 0.0
        if self._last is not None and self._last.timings is not None:
            queue_ms = max(0.0, first_ms - self._last.timings.prompt_ms)
        elif self._last is not None and self._last.metrics is not None:
            queue_ms = min(first_ms, self._last.metrics.queue_time_ms or 0.0)
        return Timings(queue_ms=queue_ms, prefill_ms=first_ms - queue_ms, decode_ms=decode_ms)


def _usage(usage: ChunkUsage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
    )
