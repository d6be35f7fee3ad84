"""Call Vertex AI through Google's client library."""

import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp
import orjson
from google.genai import Client, errors, types

from services.vertex.settings import VertexSettings

_ERROR: Final = re.compile(r'\s*\{\s*"error"')
"""Pattern for the beginning of a frame that reports an error. Such a frame ends the stream."""


class VertexClient:
    def __init__(self, settings: VertexSettings, credentials: Any, project: str) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=settings.vertex_slots))
        client = Client(
            vertexai=True,
            credentials=credentials,
            project=project,
            location=settings.vertex_location,
            http_options=types.HttpOptions(aiohttp_client=self._session, base_url=settings.vertex_url),
        )
        # No other module uses private methods of ``google-genai``. Its version is pinned below 4. The public methods
        # take 4 ms of CPU per call and 0.25 ms per frame. They close an abandoned stream only when the garbage
        # collector finds it, and until then Vertex AI generates tokens that must be paid for.
        self._api: Any = client._api_client  # noqa: SLF001

    async def stream(self, model: str, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """Yield the responses that make up an answer, each as JSON.

        If the caller stops early, the connection is closed.

        Raises:
            google.genai.errors.APIError: The server refused the request, or ended the stream with an error.
            aiohttp.ClientError: The request could not be sent, or the connection was lost.
            GoogleAuthError: The request could not be signed with the credentials.
        """
        path = f"publishers/google/models/{model}:streamGenerateContent?alt=sse"
        request = self._api._build_request("post", path, body)  # noqa: SLF001
        # The retries of Google's client are not used. They wait up to ten seconds and ignore the request's deadline.
        response = await self._api._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
        try:
            async with contextlib.aclosing(response._aiter_response_stream()) as events:  # noqa: SLF001
                async for data in events:
                    if _ERROR.match(data):
                        await _raise(data, response)
                    yield data
        finally:
            response.response_stream.close()  # no effect after a complete answer, whose connection is in the pool again

    async def close(self) -> None:
        await self._session.close()


async def _raise(data: str, response: Any) -> None:
    try:
        body = orjson.loads(data)
        code = int(body["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return
    await errors.APIError.raise_error_async(code, body, response.response_stream)
