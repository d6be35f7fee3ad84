"""Google's client, as far as it serves: credentials, addresses, HTTP, server-sent events, errors.

Everything of it that is not public is used here, and ``google-genai`` is pinned below 4 because of this file. Its typed
methods cost four milliseconds of CPU a call and a quarter of one a frame, ten times what the rest of the worker needs;
what they call underneath takes and gives plain JSON.

An abandoned stream is left to the garbage collector by the client: until that comes by, the server goes on and is paid.
So the session knows each execution's response and closes it at once.
"""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from google.genai import Client, types

from services.vertex.settings import VertexSettings

RUN_HEADER: Final = "x-railbus-run"
"""Carries the execution's id from a call to the session; it is not sent."""


class Google:
    """One project and location.

    Args:
        settings: Where.
        credentials: Google's.
        project: Google Cloud project.
    """

    def __init__(self, settings: VertexSettings, credentials: Any, project: str) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._on_start)
        trace.on_request_end.append(self._on_end)
        connector = aiohttp.TCPConnector(limit=settings.vertex_slots)
        self._session = aiohttp.ClientSession(connector=connector, trace_configs=[trace])
        self._responses: dict[str, aiohttp.ClientResponse] = {}
        client = Client(
            vertexai=True,
            credentials=credentials,
            project=project,
            location=settings.vertex_location,
            http_options=types.HttpOptions(
                aiohttp_client=self._session,
                base_url=settings.vertex_url,
                retry_options=types.HttpRetryOptions(attempts=1),  # else the client waits up to 10 s by itself
            ),
        )
        self._api: Any = client._api_client  # noqa: SLF001 - see above

    async def stream(self, model: str, body: dict[str, Any], run: str) -> AsyncIterator[str]:
        """The JSON of each frame of an answer.

        Raises:
            google.genai.errors.APIError: The server refused, or broke off with an error.
            aiohttp.ClientError, GoogleAuthError: It did not come to that.
        """
        path = f"publishers/google/models/{model}:streamGenerateContent?alt=sse"
        options = types.HttpOptions(headers={RUN_HEADER: run})
        async for response in await self._api.async_request_streamed("post", path, body, options):
            yield response.body

    def end(self, run: str) -> None:
        """Closes the execution's connection, unless its answer was read to the end."""
        response = self._responses.pop(run, None)
        if response is not None:
            response.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def _on_start(
        self, _: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
    ) -> None:
        context.run = params.headers.pop(RUN_HEADER, None)

    async def _on_end(
        self, _: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        if context.run is not None:
            self._responses[context.run] = params.response
