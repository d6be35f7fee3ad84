"""Streamed chat completions over HTTP."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Final

import aiohttp

from services.generator.engines.answer import Answer, Endpoint, body_of
from services.generator.engines.frames import FrameReader
from services.generator.engines.refusals import refusal
from services.worker.engine import Done, EngineError, Job, Step

MAX_REFUSAL_BYTES: Final = 65_536
"""More of an error's body is not read."""

TAIL_S: Final = 1.0
"""How long after the last token usage and the end of the stream are waited for."""

# Compression would make a server hold text back until there is enough to compress.
_HEADERS: Final = {
    "Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity",
}  # fmt: skip


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
        if with_usage and response.status in {400, 422} and b"stream_options" in body:
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
