"""Back-pressure for batch requests over HTTP: they wait at the edge until there is room, and leave room for others.

A job has a window of open requests. Whoever sends requests of the batch lane one by one has none: they are open for
hours, and would take every stream of the edge from interactive clients. So they get a share of the streams, and those
beyond it wait in the order of their arrival, on their own connections, before anything is on the log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from services.edge.errors import ApiError
from services.runtime.metrics import EDGE_BATCH_WAITING

BATCH_SHARE: Final = 0.75
"""Share of the streams that batch requests may have, as of a generator's slots."""


class StreamPlace:
    """A place of one batch request; ``release`` gives it back, and may be called again.

    Attributes:
        waited: Whether there was none when the request came.
    """

    def __init__(self, room: "BatchRoom", *, waited: bool) -> None:
        self.waited = waited
        self._room: BatchRoom | None = room

    def release(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.taken -= 1
            room.admit()


class BatchRoom:
    """The places of the batch lane on one edge.

    Args:
        most_streams: Most streams of the edge, of both lanes. As many batch requests may wait; more are refused.
        open_streams: Returns how many are open.

    Attributes:
        taken: Places that are taken.
    """

    def __init__(self, most_streams: int, open_streams: Callable[[], int]) -> None:
        self.taken = 0
        self._most_streams = most_streams
        self._most = max(1, int(most_streams * BATCH_SHARE))
        self._open_streams = open_streams
        self._waiting: deque[asyncio.Future[StreamPlace]] = deque()  # bounded by most_streams

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def take(self) -> StreamPlace:
        """Return a place, as soon as there is one.

        Raises:
            ApiError: 503: too many wait already.
        """
        if not self._waiting and self._free > 0:
            self.taken += 1
            return StreamPlace(self, waited=False)
        if len(self._waiting) >= self._most_streams:
            raise ApiError(503, "Too many batch requests wait: try again.", code="too_many_streams", retry_after_s=10)
        turn: asyncio.Future[StreamPlace] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        EDGE_BATCH_WAITING.inc()
        self.admit()
        try:
            return await turn
        except asyncio.CancelledError:  # the client has left
            if turn.done() and not turn.cancelled():
                turn.result().release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        finally:
            EDGE_BATCH_WAITING.dec()

    def admit(self) -> None:
        """Let in whoever has waited longest, as long as there is room. Call it whenever a stream has ended."""
        room = self._free
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.taken += 1
            room -= 1
            turn.set_result(StreamPlace(self, waited=True))

    @property
    def _free(self) -> int:
        return min(self._most - self.taken, self._most_streams - self._open_streams())
