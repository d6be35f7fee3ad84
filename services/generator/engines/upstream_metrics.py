"""What a vLLM server tells of its drafts at ``/metrics``: all its answers together, ours and other people's."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import aiohttp

from services.runtime import metrics
from services.runtime.logging import logger

_log = logger("generator")

EVERY_S: Final = 15.0
"""Between two looks."""

PATIENCE_S: Final = 2.0
"""Longest time a look may take."""

MAX_BYTES: Final = 4_194_304
"""Of an exposition; what comes behind is not read."""

_LINE: Final = re.compile(
    r"^vllm:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens since the server started, over all its engines."""

    drafted: int
    accepted: int


def drafts_in(exposition: str) -> Drafts | None:
    """The drafts that Prometheus' text format tells of; None when it tells of none, as without speculation."""
    totals = {"draft": 0.0, "accepted": 0.0}
    found = False
    for name, value in _LINE.findall(exposition):
        try:
            totals[name] += float(value)
        except ValueError:
            continue
        found = True
    return Drafts(int(totals["draft"]), int(totals["accepted"])) if found else None


class UpstreamMetrics:
    """Looks again and again, if the first look found something.

    Args:
        session: For the upstream.
        url: Of ``/metrics``.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins; does nothing where the upstream tells of no drafts."""
        first = await self.look()
        if first is not None:
            _log.info("the upstream drafts; its totals are in our metrics")
            self._task = asyncio.create_task(self._repeat())

    async def look(self) -> Drafts | None:
        """The totals now; None when they cannot be had."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            async with self._session.get(self._url, allow_redirects=False, timeout=timeout) as response:
                if response.status != 200:
                    return None
                body = bytearray()
                while len(body) < MAX_BYTES and (more := await response.content.readany()):
                    body += more
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        found = drafts_in(body.decode(errors="replace"))
        if found is not None:
            metrics.UPSTREAM_DRAFTED.set(found.drafted)
            metrics.UPSTREAM_ACCEPTED.set(found.accepted)
        return found

    async def stop(self) -> None:
        """Looks no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()
