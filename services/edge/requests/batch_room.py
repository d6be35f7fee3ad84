"""Back-pressure for batch requests over HTTP: they wait at the edge until there is room, and leave room for others.

A job limits its open requests by a window. Clients that send batch requests one by one have no such window, and these
requests can stay open for hours. They would leave no stream of the edge to interactive clients. So batch requests get
a share of the streams. Requests beyond it wait in order of arrival, on their own connections, before they are on the
log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from services.edge.errors import ApiError
from services.runtime.metrics import EDGE_BATCH_WAITING

BATCH_SHARE: Final = 0.75
"""Share of the edge's streams that batch requests may have. They may have the same share of a generator's slots."""


class StreamPlace:
    """A place of one batch request; ``release`` gives it back, and may be called again.

    Attributes:
        waited: Whether no place was free when the request came.
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
        open_streams: Returns how many streams are open.

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
        """Return a place as soon as one is free.

        Raises:
            ApiError: 503, if too many requests wait already.
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
        """Give free places to the requests that have waited longest. Call this whenever a stream has ended."""
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
