"""One streamed chat completion: the request, its bytes, its steps, its end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from schemas.stream import FinishReason, Timings, Usage
from services.generator.engine import Done, EngineError, Job, Step
from services.generator.engines.frames import FINISHED_EARLY, Frame, FrameReader, FrameUsage, drafting
from services.generator.engines.refusals import mentions, refusal

MAX_REFUSAL_BYTES: Final = 65_536
"""More of an error's body is not read."""

TAIL_S: Final = 1.0
"""How long after the last token usage and the end of the stream are waited for."""

# Compression would make a server hold text back until there is enough to compress.
_HEADERS: Final = {
    "Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity",
}  # fmt: skip
_ENDS: Final[dict[str, FinishReason]] = {"length": "length", "max_tokens": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where completions are asked for.

    Attributes:
        url: Of ``/chat/completions``.
        step_usage: Ask for usage in every chunk (vLLM, SGLang), so that tokens per step are exact with speculation.
        extra: More fields of the request's body.
    """

    url: str
    step_usage: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


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
        **endpoint.extra,
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


class Completions:
    """A bounded pool of connections to one server."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._session = session
        self._endpoint = endpoint
        self._usage = True
        self.running = 0

    async def stream(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """As ``Engine.generate``. Whatever ends it early closes the connection at once, which aborts the answer."""
        self.running += 1
        answer, reader = Answer(time.monotonic()), FrameReader()
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._ask(job)
            content, deadline = response.content, None
            while not reader.done and (data := await _more(content, deadline)):
                now = time.monotonic()
                for frame in reader.feed(data):
                    step = answer.read(frame, now)
                    if step is not None:
                        yield step
                if deadline is None and answer.complete:
                    deadline = now + TAIL_S
            yield answer.end(said_done=reader.done)
            if reader.done:  # the body's last bytes are read too, so that the connection can be used again
                await _more(content, time.monotonic() + TAIL_S)
        except (aiohttp.ClientError, OSError) as error:
            raise lost(error) from None
        finally:
            self.running -= 1
            if response is not None:
                response.release()  # closes the connection, unless its body was read to the end

    async def _ask(self, job: Job) -> aiohttp.ClientResponse:
        """The response whose body is the answer.

        Raises:
            EngineError: The server refused.
        """
        with_usage = self._usage
        response = await self._post(job, usage=with_usage)
        if response.status == 200:
            return response
        body = await _refusal_body(response)
        if with_usage and response.status in {400, 422} and mentions(body, b"stream_options"):
            self._usage = False  # remembered: this server counts no tokens for us
            return await self._ask(job)
        raise refusal(response.status, body)

    async def _post(self, job: Job, *, usage: bool) -> aiohttp.ClientResponse:
        """The response's head. A kept connection may be gone by the time it is used again: then once more, anew."""
        body = body_of(job, self._endpoint, usage=usage)
        try:
            return await self._session.post(self._endpoint.url, data=body, headers=_HEADERS, allow_redirects=False)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.post(self._endpoint.url, data=body, headers=_HEADERS, allow_redirects=False)


async def _more(content: aiohttp.StreamReader, deadline: float | None) -> bytes:
    """The next bytes; nothing at the end of the body, or when the deadline passes."""
    if deadline is None:
        return await content.readany()
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await content.readany()
    return b""


async def _refusal_body(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.read(MAX_REFUSAL_BYTES)
    finally:
        response.close()


def lost(error: Exception) -> EngineError:
    """A transport's error in our words; it names the server's fault, never what was sent."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return EngineError("unavailable", "the upstream cannot be reached", retryable=True)
    if isinstance(error, TimeoutError):
        return EngineError("timeout", "the upstream was silent for too long", retryable=True)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError):
        return EngineError("unavailable", "the upstream broke the connection off", retryable=True)
    return EngineError("internal", f"the upstream answered what is not HTTP ({type(error).__name__})", retryable=True)
