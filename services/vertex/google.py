"""Google's client, as far as it serves: credentials, addresses, HTTP, server-sent events, errors.

Everything of it that is not public is used here, and ``google-genai`` is pinned below 4 because of this file. Its typed
methods cost four milliseconds of CPU a call and a quarter of one a frame, ten times what the rest of the worker needs;
what they call underneath takes and gives plain JSON. An abandoned stream is left to the garbage collector by the
client: until that comes by, the server goes on and is paid. Here its connection is closed at once.
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
"""The beginning of a frame that says that the stream broke off."""


class Google:
    """One project and location.

    Args:
        settings: Where.
        credentials: Google's.
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
        """The JSON of each frame of an answer; ends the connection when it is closed before the answer's end.

        Raises:
            google.genai.errors.APIError: The server refused, or broke off with an error.
            aiohttp.ClientError, GoogleAuthError: It did not come to that.
        """
        path = f"publishers/google/models/{model}:streamGenerateContent?alt=sse"
        request = self._api._build_request("post", path, body)  # noqa: SLF001
        # Not through its retries: they wait up to ten seconds, and ours know the deadline.
        response = await self._api._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
        try:
            async with contextlib.aclosing(response._aiter_response_stream()) as frames:  # noqa: SLF001
                async for data in frames:
                    if _ERROR.match(data):
                        await _raise(data, response)
                    yield data
        finally:
            response.response_stream.close()  # one that was read to its end is in the pool by now, and stays there

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()


async def _raise(data: str, response: Any) -> None:
    """What the client makes of an error; one that is none of Google's is left to whoever reads the frame."""
    try:
        said = orjson.loads(data)
        code = int(said["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return
    await errors.APIError.raise_error_async(code, said, response.response_stream)
