"""Limit the memory for request bodies and websocket messages that are not on the log yet.

If their total size exceeds the limit, the edge closes the connection whose incomplete body or message is the oldest.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Self, TypeVar

from services.edge.errors import ApiError

Key = TypeVar("Key", bound=Hashable)

WORK_SHARE: Final = 1 / 8
"""Maximum share of ``body_memory_mb`` for bodies in processing. Each of them needs about four times its size."""

ASIDE_SHARE: Final = 1 / 2
"""Maximum share of ``body_memory_mb`` for batch requests that wait for a free stream, perhaps for hours."""

SLACK_BYTES: Final = 256
"""Up to this many bytes after a complete message count as headers of its frames, not as part of the next message."""

TURNS_AT_ONCE: Final = 4
"""Maximum number of bodies whose processing starts in one event loop iteration. A hundred requests that arrive together
take 50 ms. Spread over iterations, they do not hold up requests that are ready for the log, or tokens for clients."""

BYTES_AT_ONCE: Final = 65_536
"""Maximum size of all bodies whose processing starts in one event loop iteration. A larger body starts alone. Parsing 1
MiB takes 10 ms."""

TURN_S: Final = 5.0
"""Maximum seconds that a complete body waits to be processed. Long waits occur only if the log stops acknowledging."""


class BodyTurn:
    """Context manager around the processing of one complete body. On entry, it waits until the processing may start."""

    __slots__ = ("_aside", "_count", "_room", "_works")

    def __init__(self, room: "BodyRoom[Any]", count: int) -> None:
        self._room, self._count = room, count
        self._works, self._aside = False, 0

    async def __aenter__(self) -> Self:
        await self._room.begin_work(self._count)
        self._works = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_work()
        self._room.reserve_aside(-self._aside)
        self._room.count_whole(-self._count)

    def set_aside(self) -> None:
        """Let other bodies be processed while this batch request waits to be put on the log.

        Raises:
            ApiError: 503, if the batch requests that wait need too much memory.
        """
        self._room.reserve_aside(self._count)
        self._aside = self._count
        self.end_work()

    def end_work(self) -> None:
        """End the processing of this body, so that other bodies can be processed."""
        if self._works:
            self._works = False
            self._room.end_work(self._count)


class BodyRoom(Generic[Key]):
    """Counts and limits the bytes of bodies and messages on all connections. Keys identify the connections.

    Args:
        max_bytes: Maximum number of bytes.
        drop: Called with the key of a connection. It must close the connection.

    Attributes:
        total: The number of bytes that are counted now.
    """

    def __init__(self, max_bytes: int, drop: Callable[[Key], None]) -> None:
        self._max_bytes = max_bytes
        self._max_in_work = int(max_bytes * WORK_SHARE)
        self._drop = drop
        self.total = 0
        self._incoming: OrderedDict[Key, int] = OrderedDict()  # incomplete bytes; the oldest key first
        self._in_work = 0
        self._aside = 0
        self._begun = self._begun_bytes = 0  # started in this event loop iteration
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # their bytes are counted

    def add(self, key: Key, count: int) -> None:
        """Count received bytes of an incomplete body or message.

        If ``total`` exceeds the limit, close connections until it does not. The connection with the oldest incomplete
        body or message is closed first. The connection of this call (``key``) is closed last.
        """
        self._incoming[key] = self._incoming.get(key, 0) + count
        self.total += count
        while self.total > self._max_bytes and key in self._incoming:
            self._drop_oldest(but=key)

    def subtract(self, key: Key, count: int) -> None:
        arrived = self._incoming.pop(key, 0)
        left = arrived - count
        if left > SLACK_BYTES:
            self._incoming[key] = left
            arrived -= left
        self.total -= arrived

    def forget(self, key: Key) -> None:
        self.total -= self._incoming.pop(key, 0)

    def turn(self, count: int) -> BodyTurn:
        return BodyTurn(self, count)

    async def begin_work(self, count: int) -> None:
        """Add a complete body of ``count`` bytes to ``total``, and wait until the body may be processed.

        Raises:
            ApiError: 503, if there is no memory for the body, or the wait takes longer than ``TURN_S``.
        """
        self.count_whole(count)
        try:
            self._make_room()
            await self._take_turn(count)
        except BaseException:
            self.count_whole(-count)
            raise

    def count_whole(self, count: int) -> None:
        """Add ``count`` bytes of a complete body to ``total``. A negative ``count`` releases bytes."""
        self.total += count

    def _make_room(self) -> None:
        while self.total > self._max_bytes and self._incoming:
            self._drop_oldest()
        if self.total > self._max_bytes:
            raise too_many_bytes()

    async def _take_turn(self, count: int) -> None:
        if not self._waiting and self._has_place(count):
            self._begin(count)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        self._admit()
        try:
            async with asyncio.timeout(TURN_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.end_work(count)
            elif (count, turn) in self._waiting:
                self._waiting.remove((count, turn))
                self._admit()  # the bodies behind this one may be small enough to start
            if isinstance(error, TimeoutError):
                raise too_many_bytes() from None
            raise

    def end_work(self, count: int) -> None:
        self._in_work -= count
        self._admit()

    def reserve_aside(self, count: int) -> None:
        """Reserve ``count`` bytes of memory for a batch request that waits to be put on the log.

        A negative ``count`` releases memory.

        Raises:
            ApiError: 503, if the batch requests that wait need too much memory.
        """
        if count > 0 and self._aside + count > self._max_bytes * ASIDE_SHARE:
            raise too_many_bytes()
        self._aside += count

    def _has_place(self, count: int) -> bool:
        fits = not self._in_work or self._in_work + count <= self._max_in_work
        now = self._begun < TURNS_AT_ONCE and self._begun_bytes + count <= BYTES_AT_ONCE
        return fits and (now or not self._begun)

    def _begin(self, count: int) -> None:
        self._in_work += count
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._begun += 1
        self._begun_bytes += count

    def _begin_round(self) -> None:
        self._begun = self._begun_bytes = 0
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if not self._has_place(count):
                return
            self._waiting.popleft()
            if not turn.cancelled():  # it is cancelled if its client is gone
                self._begin(count)
                turn.set_result(None)

    def _drop_oldest(self, but: Key | None = None) -> None:
        oldest = next((key for key in self._incoming if key != but), but)
        if oldest is not None:
            self.forget(oldest)
            self._drop(oldest)


def too_many_bytes() -> ApiError:
    return ApiError(
        503, "Too many bytes of requests are on their way: try again.", code="too_many_bytes", retry_after_s=1
    )
