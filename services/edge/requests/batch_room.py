"""Keep batch requests from using all streams of the edge.

Batch requests may use the share ``BATCH_SHARE`` of the streams. Further batch requests wait, in order of arrival,
before they are put on the log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from services.edge.errors import ApiError
from services.runtime.metrics import EDGE_BATCH_WAITING

BATCH_SHARE: Final = 0.75
"""Share of the edge's streams that batch requests may use. They may use the same share of a generator's slots."""


class StreamPlace:
    """A place among the edge's streams, taken by one batch request until ``release`` is called.

    Attributes:
        waited: Whether the request had to wait for the place.
    """

    def __init__(self, room: "BatchRoom", *, waited: bool) -> None:
        self.waited = waited
        self._room: BatchRoom | None = room
        self._is_open = False

    def open(self) -> None:
        """Record that the request's stream is open. ``open_streams`` counts the stream from now on."""
        if self._room is not None and not self._is_open:
            self._is_open = True
            self._room.unopened -= 1

    def release(self) -> None:
        self.open()
        room, self._room = self._room, None
        if room is not None:
            room.taken -= 1
            room.admit()


class BatchRoom:
    """Decides which batch requests may use a stream of this edge.

    Args:
        most_streams: Maximum number of open streams at this edge. No more than this number of batch requests may wait.
        open_streams: Returns how many streams are open.

    Attributes:
        taken: Number of batch requests that have a place among the edge's streams.
        unopened: Number of places that are taken and whose stream is not open yet.
    """

    def __init__(self, most_streams: int, open_streams: Callable[[], int]) -> None:
        self.taken = self.unopened = 0
        self._most_streams = most_streams
        self._most = max(1, int(most_streams * BATCH_SHARE))
        self._open_streams = open_streams
        self._waiting: deque[asyncio.Future[StreamPlace]] = deque()  # bounded by most_streams

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def take(self) -> StreamPlace:
        """Reserve one of the edge's streams for a batch request. Wait until a stream is free for batch requests.

        Raises:
            ApiError: 503, if too many batch requests wait already.
        """
        if not self._waiting and self._free > 0:
            return self._place(waited=False)
        if len(self._waiting) >= self._most_streams:
            raise ApiError(503, "Too many batch requests wait: try again.", code="too_many_streams", retry_after_s=10)
        turn: asyncio.Future[StreamPlace] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        EDGE_BATCH_WAITING.inc()
        self.admit()
        try:
            return await turn
        except asyncio.CancelledError:  # the client has disconnected
            if turn.done() and not turn.cancelled():
                turn.result().release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        finally:
            EDGE_BATCH_WAITING.dec()

    def admit(self) -> None:
        """Let the oldest waiting requests proceed, one for each stream that is free for batch requests.

        Call this whenever a stream has ended.
        """
        while self._waiting and self._free > 0:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(self._place(waited=True))

    def _place(self, *, waited: bool) -> StreamPlace:
        self.taken += 1
        self.unopened += 1
        return StreamPlace(self, waited=waited)

    @property
    def _free(self) -> int:
        return min(self._most - self.taken, self._most_streams - self._open_streams() - self.unopened)
