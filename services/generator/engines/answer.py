"""One streamed chat completion on paper: the body that asks for it, and what its frames mean. No I/O, no clock."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from schemas.stream import FinishReason, Timings, Usage
from services.generator.engines.frames import FINISHED_EARLY, Frame, FrameUsage, drafting
from services.worker.engine import Done, EngineError, Job, Step

_ENDS: Final[dict[str, FinishReason]] = {"length": "length", "max_tokens": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where completions are asked for.

    Attributes:
        url: Of ``/chat/completions``.
        step_usage: Ask for usage in every chunk (vLLM, SGLang), so that tokens per step are exact with speculation.
    """

    url: str
    step_usage: bool = False


def body_of(job: Job, endpoint: Endpoint, *, usage: bool) -> bytes:
    """The request's body; without ``usage`` for servers that refuse ``stream_options``."""
    sampling = job.sampling
    body: dict[str, Any] = {
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


class Answer:
    """What was read of one answer so far. Pure: frames and times in, steps out."""

    __slots__ = ("_counted", "_finish", "_first_at", "_last", "_last_at", "_sent_at", "_usage")

    def __init__(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self._first_at = self._last_at = 0.0
        self._counted = 0
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._last: Frame | None = None

    @property
    def complete(self) -> bool:
        """The last token is there; at most usage and the end of the stream are still to come."""
        return self._finish is not None

    def read(self, frame: Frame, now: float) -> Step | None:
        """The step in a frame, if it has one: a role, an empty delta or usage alone is none.

        Args:
            frame: What the server sent.
            now: Monotonic time, in seconds.

        Raises:
            EngineError: The answer ended in a way that is no end.
        """
        if frame.usage is not None:
            self._usage = _usage(frame.usage)
        if frame.metrics is not None or frame.timings is not None:
            self._last = frame
        if not frame.choices:
            return None
        choice = frame.choices[0]
        if choice.finish_reason is not None:
            early = FINISHED_EARLY.get(choice.finish_reason)
            if early is not None:
                raise EngineError(*early, retryable=early[0] != "safety_block")
            self._finish = choice.finish_reason
        text = choice.delta.content if choice.delta is not None else None
        if not text:
            return None
        if not self._first_at:
            self._first_at = now
        self._last_at = now
        return Step(text=text, tokens=self._tokens(frame))

    def end(self, *, said_done: bool) -> Done:
        """The answer's end, once the stream is over.

        Raises:
            EngineError: ``unavailable``: the stream broke off.
        """
        if self._finish is None and not (said_done and self._first_at):
            raise EngineError(
                "unavailable", "the upstream ended the stream before the answer was complete", retryable=True
            )
        return Done(
            finish_reason=_ENDS.get(self._finish or "", "stop"),
            usage=self._usage or Usage(completion_tokens=self._counted),
            timings=self._timings(),
            speculation=None if self._last is None else drafting(self._last),
        )

    def _tokens(self, frame: Frame) -> int:
        """By the server's own count where it comes with each chunk, else one."""
        tokens = 1 if frame.usage is None else max(0, frame.usage.completion_tokens - self._counted)
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


def _usage(told: FrameUsage) -> Usage:
    details = told.prompt_tokens_details
    return Usage(
        prompt_tokens=told.prompt_tokens,
        completion_tokens=told.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
    )
