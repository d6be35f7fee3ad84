"""An HTTP client for streamed chat completions."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Final

import aiohttp

from services.generator.engines.chat_completions.chunks import SseDecoder
from services.generator.engines.chat_completions.errors import upstream_error
from services.generator.engines.chat_completions.parser import CompletionParser, Endpoint, request_body
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job

MAX_ERROR_BODY_BYTES: Final = 65_536
"""Maximum number of bytes that are read of the body of an error response."""

STALE_CONNECTION_S: Final = 1.0
"""A request that loses its connection within this many seconds is sent once more, because the server may have closed an
idle connection. Later, the server has read the request and died, and the same prompt could kill it again."""

ERROR_BODY_TIMEOUT_S: Final = 1.0
"""Maximum number of seconds to wait for the rest of the body of an error response."""

END_OF_STREAM_TIMEOUT_S: Final = 1.0
"""Maximum number of seconds to wait, after the last token, for the token counts and the end of the stream."""

# Compression is refused, because a server delays text until there is enough to compress.
_HEADERS: Final = {
    "Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity",
}  # fmt: skip


class CompletionsClient:
    """A client of one server.

    Attributes:
        running: Number of answers in progress.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._session = session
        self._endpoint = endpoint
        self._usage = True
        self.running = 0

    async def stream(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield the steps of an answer, and then its result. ``aclose()`` aborts the answer on the server.

        Raises:
            EngineError: The server refused the request, failed, or could not be reached.
        """
        self.running += 1
        parser, decoder = CompletionParser(time.monotonic()), SseDecoder()
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._ask(job)
            content, deadline = response.content, None
            while not decoder.done and (data := await _more(content, deadline)):
                now = time.monotonic()
                for chunk in decoder.feed(data):
                    step = parser.read(chunk, now)
                    if step is not None:
                        yield step
                if deadline is None and parser.complete:
                    deadline = now + END_OF_STREAM_TIMEOUT_S
            yield parser.end(stream_done=decoder.done)
            if decoder.done:  # read the body's last bytes, so that the connection can be reused
                await _more(content, time.monotonic() + END_OF_STREAM_TIMEOUT_S)
        except (aiohttp.ClientError, OSError) as error:
            raise transport_error(error) from None
        finally:
            self.running -= 1
            if response is not None:
                response.release()  # this closes the connection, unless the body was read to its end

    async def _ask(self, job: Job) -> aiohttp.ClientResponse:
        with_usage = self._usage
        response = await self._post(job, usage=with_usage)
        if response.status == 200:
            return response
        body = await _error_body(response)
        if with_usage and response.status in {400, 422} and b"stream_options" in body:
            response = await self._post(job, usage=False)
            if response.status == 200:
                self._usage = False  # this server does not support stream_options
                return response
            body = await _error_body(response)
        raise upstream_error(response.status, body)

    async def _post(self, job: Job, *, usage: bool) -> aiohttp.ClientResponse:
        body, began = request_body(job, self._endpoint, usage=usage), time.monotonic()
        try:
            return await self._session.post(self._endpoint.url, data=body, headers=_HEADERS, allow_redirects=False)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if time.monotonic() - began > STALE_CONNECTION_S:
                raise
            # The second call opens a new connection.
            return await self._session.post(self._endpoint.url, data=body, headers=_HEADERS, allow_redirects=False)


async def _more(content: aiohttp.StreamReader, deadline: float | None) -> bytes:
    if deadline is None:
        return await content.readany()
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await content.readany()
    return b""


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    body, deadline = b"", time.monotonic() + ERROR_BODY_TIMEOUT_S
    try:
        # ``read(n)`` would return what has arrived so far, which may be only a part of the body.
        while len(body) < MAX_ERROR_BODY_BYTES and (more := await _more(response.content, deadline)):
            body += more
    finally:
        response.close()
    return body[:MAX_ERROR_BODY_BYTES]


def transport_error(error: Exception) -> EngineError:
    """Convert an error of the HTTP client to an ``EngineError`` whose message contains no text of the request."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return EngineError("unavailable", "the upstream cannot be reached", retryable=True)
    if isinstance(error, TimeoutError):
        return EngineError("timeout", "the upstream sent nothing for too long", retryable=True)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError):
        return EngineError("unavailable", "the upstream closed the connection", retryable=True)
    return EngineError("internal", f"the upstream's answer is not valid HTTP ({type(error).__name__})", retryable=True)
