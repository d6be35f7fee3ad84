import asyncio
from collections import deque


class ByteSemaphore:
    """A semaphore that counts bytes. Callers that wait are served in order."""

    __slots__ = ("_free", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, n: int) -> bool:
        """Acquire ``n`` bytes without waiting. Return false if fewer bytes are free or another caller is waiting."""
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
                self._free += n  # granted just before the cancellation
            self._grant()  # callers behind this one may fit now
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
