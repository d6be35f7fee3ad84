"""Backpressure between a handler and the loop that reads for it."""

import asyncio

from services.runtime.metrics import FULL


class Room:
    """A number of places. A handler takes one for what it keeps and gives it back when that is done.

    While no place is free the loop delivers nothing, and it never asks for more records than places are free, so at
    most ``limit`` records are kept at once (when the handler takes no more than one place for a record). Behind it
    waits what was left over of one answer of each broker, at most ``services.bus.line.ANSWER_BYTES``.
    """

    __slots__ = ("_free", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            msg = f"a room needs at least one place, not {limit}"
            raise ValueError(msg)
        self._limit = limit
        self._free = limit
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> int:
        """All places."""
        return self._limit

    @property
    def free(self) -> int:
        """Places not taken; negative when a handler took more than there were."""
        return self._free

    def take(self, n: int = 1) -> None:
        """Takes places; never waits, because a handler may not."""
        self._free -= n

    def give(self, n: int = 1) -> None:
        """Gives places back; a loop that waits goes on at once."""
        self._free += n
        if self._free > self._limit:
            msg = f"{self._free - self._limit} more places were given back than were taken"
            raise ValueError(msg)
        if self._free > 0:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def occupy(self, taken: int) -> None:
        """So many places are taken now; for a handler that counts for itself."""
        self.take(taken - (self._limit - self._free))
        self.give(0)

    async def wait(self) -> None:
        """Returns when a place is free."""
        if self._free <= 0:
            FULL.inc()
        while self._free <= 0:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
