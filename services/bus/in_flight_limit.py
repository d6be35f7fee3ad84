import asyncio

from services.runtime.metrics import READS_PAUSED


class InFlightLimit:
    """Limits how many records a handler works on at the same time.

    The handler acquires a slot for each record that it does not finish at once, and releases the slot later, for
    example when the record is done. The read loop delivers at most as many records as there are free slots.
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
        """Return the number of free slots. It is negative while more slots are taken than ``limit``."""
        return self._free

    def acquire(self, n: int = 1) -> None:
        self._free -= n  # a handler must not wait

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
        free = self._limit - taken
        if free != self._free:
            self._free = free
            self.release(0)

    async def wait(self) -> None:
        if self._free <= 0:
            READS_PAUSED.inc()
        while self._free <= 0:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
