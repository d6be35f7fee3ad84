"""A bound in bytes that callers wait for in the order they came."""

import asyncio
from collections import deque


class Budget:
    """At most ``limit`` bytes are out at once. A single taking must not be larger than the limit."""

    __slots__ = ("_free", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, n: int) -> bool:
        """Takes at once, unless it is too much now or others wait already."""
        if self._waiters or n > self._free:
            return False
        self._free -= n
        return True

    async def take(self, n: int) -> None:
        """Takes when it is this caller's turn."""
        if self.try_take(n):
            return
        if n > self._limit:
            msg = f"{n} is more than the whole budget of {self._limit}"
            raise ValueError(msg)
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append((n, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free += n  # it was granted in the moment the caller gave up
            self._grant()  # others may have stood behind this one
            raise

    def give(self, n: int) -> None:
        """Gives back; those whose turn it is go on."""
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
