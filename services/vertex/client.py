"""Stream calls through Google's client, which handles credentials, addresses, HTTP, server-sent events and errors.

Only this module uses private parts of ``google-genai``, which is therefore pinned below 4. The typed methods of that
client cost 4 ms of CPU per call and 0.25 ms per frame, ten times what the rest of the worker needs. The private methods
take and return plain JSON. The client also leaves an abandoned stream open until the garbage collector finds it, and
until then the server generates tokens that must be paid for. This module closes the connection at once.
"""

import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp
import orjson
from google.genai import Client, errors, types

from services.vertex.settings import VertexSettings

_ERROR: Final = re.compile(r'\s*\{\s*"error"')
"""The beginning of a frame that reports an error and ends the stream."""


class VertexClient:
    """A client for one project and location.

    Args:
        settings: The location, and the address if it is not Google's.
        credentials: Google credentials.
        project: Google Cloud project.
    """

    def __init__(self, settings: VertexSettings, credentials: Any, project: str) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=settings.vertex_slots))
        client = Client(
            vertexai=True,
            credentials=credentials,
            project=project,
            location=settings.vertex_location,
            http_options=types.HttpOptions(aiohttp_client=self._session, base_url=settings.vertex_url),
        )
        self._api: Any = client._api_client  # noqa: SLF001 - see above

    async def stream(self, model: str, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """Yield each response of an answer as JSON. Close the connection if the answer is abandoned.

        Raises:
            google.genai.errors.APIError: The server refused the request, or ended the stream with an error.
            aiohttp.ClientError, GoogleAuthError: The request could not be sent or signed.
        """
        path = f"publishers/google/models/{model}:streamGenerateContent?alt=sse"
        request = self._api._build_request("post", path, body)  # noqa: SLF001
        # The client's own retries are not used, because they wait up to ten seconds and do not know the deadline.
        response = await self._api._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
        try:
            async with contextlib.aclosing(response._aiter_response_stream()) as events:  # noqa: SLF001
                async for data in events:
                    if _ERROR.match(data):
                        await _raise(data, response)
                    yield data
        finally:
            response.response_stream.close()  # after a complete answer the connection is in the pool already

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _raise(data: str, response: Any) -> None:
    """Raise the client's exception for an error frame; return if the frame is not in Google's error format."""
    try:
        body = orjson.loads(data)
        code = int(body["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return
    await errors.APIError.raise_error_async(code, body, response.response_stream)
