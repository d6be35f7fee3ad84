"""Who may work next: tenants take turns, and a turn is short, so that one tenant's texts do not delay another's.

Batch requests have a turn when no interactive one waits for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from services.processor.fair_queue import FairQueue

SLICE_WORK: Final = 1_024
"""About how many characters are read in one turn, or as much other work: a fifth of a millisecond of prose."""

PIECE_CHARS: Final = 16
"""After how many characters their cost is checked: some text costs a hundred times as much as prose."""


class Turns:
    """Hands out turns, first come, first served for each tenant of a lane. The service bounds how many wait.

    Args:
        most: How many turns are taken at once.
    """

    def __init__(self, most: int = 1) -> None:
        self._free = most
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._waiting_batch: FairQueue[asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def turn(self, tenant: str, *, batch: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and hold it. The event loop reads its sockets before the next one."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        (self._waiting_batch if batch else self._waiting).put(tenant, mine)
        loop.call_soon(self._hand_out)
        try:
            await mine
            yield
        finally:
            if mine.done() and not mine.cancelled():
                self._free += 1
                loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        while self._free and (turn := self._waiting.get() or self._waiting_batch.get()) is not None:
            if not turn[1].done():  # whoever was cancelled waits no more
                self._free -= 1
                turn[1].set_result(None)
