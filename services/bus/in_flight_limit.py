"""Backpressure between a handler and the loop that reads for it."""

import asyncio

from services.runtime.metrics import READS_PAUSED


class InFlightLimit:
    """A number of slots: a handler acquires one for each record it keeps, and releases it when that is done.

    While no slot is free, the loop delivers nothing, and it never asks for more records than slots are free. So at most
    ``limit`` records are kept at once, if the handler acquires one slot for a record. The rest of
    one fetch response of each broker may wait as well, at most ``services.bus.read.fetch_connection.ANSWER_BYTES``.
    """

    __slots__ = ("_free", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            msg = f"an in-flight limit is at least 1, not {limit}"
            raise ValueError(msg)
        self._limit = limit
        self._free = limit
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def free(self) -> int:
        """Return the number of free slots; negative when a handler acquired more than there were."""
        return self._free

    def acquire(self, n: int = 1) -> None:
        """Take slots without waiting, because a handler may not wait."""
        self._free -= n

    def release(self, n: int = 1) -> None:
        self._free += n
        if self._free > self._limit:
            msg = f"{self._free - self._limit} more slots were released than acquired"
            raise ValueError(msg)
        if self._free > 0:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def set_in_flight(self, taken: int) -> None:
        """Set the number of slots in use, for a handler that counts for itself."""
        free = self._limit - taken
        if free != self._free:
            self._free = free
            self.release(0)

    async def wait(self) -> None:
        """Wait until a slot is free."""
        if self._free <= 0:
            READS_PAUSED.inc()
        while self._free <= 0:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
