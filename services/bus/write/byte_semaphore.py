"""A semaphore that counts bytes; callers acquire in the order in which they asked."""

import asyncio
from collections import deque


class ByteSemaphore:
    """At most ``limit`` bytes are acquired at once; a single caller may not ask for more than that."""

    __slots__ = ("_free", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, n: int) -> bool:
        """Acquire without waiting; false when too little is free or others wait."""
        if self._waiters or n > self._free:
            return False
        self._free -= n
        return True

    async def acquire(self, n: int) -> None:
        if self.try_acquire(n):
            return
        if n > self._limit:
            msg = f"{n} is more than the limit of {self._limit}"
            raise ValueError(msg)
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append((n, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free += n  # granted at the moment of the cancellation
            self._grant()  # others may have waited behind this one
            raise

    def release(self, n: int) -> None:
        self._free += n
        self._grant()

    def _grant(self) -> None:
        while self._waiters:
            n, turn = self._waiters[0]
            if turn.cancelled():
                self._waiters.popleft()
            elif n <= self._free:
                self._waiters.popleft()
                self._free -= n
                turn.set_result(None)
            else:
                return
