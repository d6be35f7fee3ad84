"""The HTTP session behind Google's client. It knows each execution's response, so that it can be closed at once.

The client leaves an abandoned stream to the garbage collector: until that comes by, the server goes on and is paid.
"""

from types import SimpleNamespace
from typing import Final

import aiohttp

RUN_HEADER: Final = "x-railbus-run"
"""Carries the execution's id from the client's call to the session; it is not sent."""


class Connections:
    """Makes the session and keeps its open responses by execution.

    Args:
        most: Connections at once.
    """

    def __init__(self, most: int) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._on_start)
        trace.on_request_end.append(self._on_end)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=most), trace_configs=[trace])
        self._responses: dict[str, aiohttp.ClientResponse] = {}

    def end(self, run: str) -> None:
        """Closes the execution's connection, unless its answer was read to the end."""
        response = self._responses.pop(run, None)
        if response is not None:
            response.close()

    async def _on_start(
        self, _: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
    ) -> None:
        context.run = params.headers.pop(RUN_HEADER, None)

    async def _on_end(
        self, _: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        if context.run is not None:
            self._responses[context.run] = params.response
