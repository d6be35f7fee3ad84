"""What an OpenAI-compatible server streams: server-sent events whose data is one JSON object each."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from schemas.base import Count, Ms
from schemas.stream import ErrorClass, Speculation
from services.generator.engines.refusals import refusal
from services.worker.engine import EngineError

MAX_LINE_BYTES: Final = 1_048_576
"""A longer line is no chunk of an answer."""

DONE: Final = b"[DONE]"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a choice adds."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One of the answers asked for; there is only one."""

    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    """Of the prompt's tokens."""

    cached_tokens: Count | None = None


class FrameUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens so far, or in all."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: PromptDetails | None = None


class FrameTimings(msgspec.Struct, frozen=True, gc=False):
    """llama.cpp's measurements of a finished answer."""

    prompt_ms: Ms = 0.0
    predicted_ms: Ms = 0.0
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class FrameSpeculation(msgspec.Struct, frozen=True, gc=False):
    """vLLM's drafting totals of one answer; index j of the histogram counts the steps that accepted j tokens."""

    num_spec_steps: Count = 0
    num_draft_tokens: Count = 0
    num_accepted_draft_tokens: Count = 0
    acceptance_histogram: list[Count] = []


class FrameMetrics(msgspec.Struct, frozen=True, gc=False):
    """vLLM's measurements of a finished answer."""

    queue_time_ms: Ms | None = None
    speculative_decoding: FrameSpeculation | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event's data. Everything else it may hold is passed over."""

    choices: list[Choice] | None = None
    usage: FrameUsage | None = None
    timings: FrameTimings | None = None
    metrics: FrameMetrics | None = None
    error: Any = None


_decode = msgspec.json.Decoder(Frame).decode


class FrameReader:
    """Bytes in, frames out. Comments, empty lines and fields other than ``data`` are passed over."""

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """The server said that nothing more comes."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete.

        Raises:
            EngineError: ``internal``: the bytes are not what they should be.
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
            yield parse(payload)


def parse(payload: bytes) -> Frame:
    """The frame in an event's data.

    Raises:
        EngineError: It is not one, or it reports an error.
    """
    try:
        frame = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError(
            "internal", "the upstream sent an event that is no chat completion chunk", retryable=True
        ) from None
    if frame.error is not None:
        raise refusal(None, payload)
    return frame


def drafting(frame: Frame) -> Speculation | None:
    """Drafting totals, when the server tells them."""
    if frame.metrics is not None and frame.metrics.speculative_decoding is not None:
        told = frame.metrics.speculative_decoding
        histogram = told.acceptance_histogram
        return Speculation(
            steps=told.num_spec_steps,
            drafted=told.num_draft_tokens,
            accepted=told.num_accepted_draft_tokens,
            accepted_by_position=tuple(sum(histogram[j:]) for j in range(1, min(len(histogram), 65))),
        )
    if frame.timings is not None and frame.timings.draft_n:
        return Speculation(drafted=frame.timings.draft_n, accepted=frame.timings.draft_n_accepted)
    return None


FINISHED_EARLY: Final[dict[str, tuple[ErrorClass, str]]] = {
    "content_filter": ("safety_block", "the upstream's own content filter ended the answer"),
    "abort": ("unavailable", "the upstream aborted the answer"),
    "error": ("internal", "the upstream ended the answer with an error"),
}
"""Finish reasons that are no end of an answer."""
