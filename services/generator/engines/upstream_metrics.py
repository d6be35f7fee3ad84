"""Read the numbers of drafted and accepted tokens from a vLLM server's ``/metrics``.

The numbers include requests of the server's other clients.
"""

import asyncio
import re
from dataclasses import dataclass
from math import isfinite
from typing import Final

import aiohttp

from services.runtime import metrics
from services.runtime.logging import logger

_log = logger("generator")

POLL_INTERVAL_S: Final = 15.0

POLL_TIMEOUT_S: Final = 2.0

MAX_BYTES: Final = 4_194_304
"""Maximum number of bytes that are read of a ``/metrics`` response. Further bytes are ignored."""

_LINE: Final = re.compile(
    r"^vllm:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class DraftTotals:
    drafted: int
    accepted: int


def parse_draft_totals(exposition: str) -> DraftTotals | None:
    """Parse metrics in Prometheus format. Return None if they have no numbers of drafted tokens."""
    totals = {"draft": 0.0, "accepted": 0.0}
    found = False
    for name, value in _LINE.findall(exposition):
        try:
            total = float(value)
        except ValueError:
            continue
        if isfinite(total):
            totals[name] += total
            found = True
    return DraftTotals(int(totals["draft"]), int(totals["accepted"])) if found else None


class UpstreamMetrics:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._task: asyncio.Task[None] | None = None
        self._answered = False

    async def start(self) -> None:
        """Read the metrics every ``POLL_INTERVAL_S`` seconds.

        While the server cannot be reached or answers with an HTTP status of 500 or more, it is regarded as starting.
        If the first other answer has no token counts, the metrics are not read again.
        """
        first = await self.poll()
        if first is not None or not self._answered:
            self._task = asyncio.create_task(self._repeat(first))

    async def poll(self) -> DraftTotals | None:
        """Read the server's token counts once, copy them to Railbus's metrics, and return them.

        Return None if the server's metrics cannot be read or do not have these counts.
        """
        timeout = aiohttp.ClientTimeout(total=POLL_TIMEOUT_S)
        try:
            async with self._session.get(self._url, allow_redirects=False, timeout=timeout) as response:
                self._answered = response.status < 500  # otherwise the server still starts
                if response.status != 200:
                    return None
                body = bytearray()
                while len(body) < MAX_BYTES and (more := await response.content.readany()):
                    body += more
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        found = parse_draft_totals(body.decode(errors="replace"))
        if found is not None:
            metrics.UPSTREAM_DRAFTED.set(found.drafted)
            metrics.UPSTREAM_ACCEPTED.set(found.accepted)
        return found

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _repeat(self, found: DraftTotals | None) -> None:
        while not self._answered:
            await asyncio.sleep(POLL_INTERVAL_S)
            found = await self.poll()
        if found is None:
            return
        _log.info("the upstream uses speculative decoding; its totals are exported as metrics")
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.poll()
