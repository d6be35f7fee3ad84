"""A bound for the bytes of all bodies and messages that clients have sent and that are not on the log yet.

Bytes count as soon as they arrive. If they are too many, the client that began to send first and has not finished is
dropped, because honest clients finish soon. Whole bodies take turns, because a body that is parsed, checked and encoded
takes several times its size in memory.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Self, TypeVar

from services.edge.errors import ApiError

Key = TypeVar("Key", bound=Hashable)

WORK_SHARE: Final = 1 / 8
"""Share of the bytes that may be worked on at the same time. Meanwhile there are about four copies of them."""

ASIDE_SHARE: Final = 1 / 2
"""Share of the bytes for requests that wait for a place of the batch lane, which may take hours."""

SLACK_BYTES: Final = 256
"""Bytes beyond a whole message that may be the heads of its frames, so they do not count for the next message."""

TURNS_AT_ONCE: Final = 4
"""Maximum number of bodies begun in one round of the event loop. A hundred requests that come at the same moment take
50 ms. Between rounds, the first of them are sent to the log, and tokens of open streams are sent to their clients."""

BYTES_AT_ONCE: Final = 65_536
"""Maximum bytes begun in one round if there is more than one body: parsing a body of 1 MiB alone takes 10 ms."""

TURN_S: Final = 5.0
"""Longest wait for a turn. Turns are short unless the log stops acknowledging."""


class BodyTurn:
    """The turn of one whole body, as a context manager. Its bytes count until the context is left."""

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
        """Let others have their turns, before a wait for a place of the batch lane.

        Raises:
            ApiError: 503, if the bytes of requests that wait for a place are too many.
        """
        self._room.reserve_aside(self._count)
        self._aside = self._count
        self.end_work()

    def end_work(self) -> None:
        """Let others have their turns, because this body waits only for the log. May be called again."""
        if self._works:
            self._works = False
            self._room.end_work(self._count)


class BodyRoom(Generic[Key]):
    """Bounds the memory that bodies and messages use, over all connections.

    Args:
        most: The bound, in bytes.
        drop: Called with the key of a connection that must end. Its bytes no longer count.

    Attributes:
        total: Bytes that count now.
    """

    def __init__(self, most: int, drop: Callable[[Key], None]) -> None:
        self._most = most
        self._most_in_work = int(most * WORK_SHARE)
        self._drop = drop
        self.total = 0
        self._incoming: OrderedDict[Key, int] = OrderedDict()  # bytes of what is not whole; the oldest is first
        self._in_work = 0
        self._aside = 0
        self._begun = self._begun_bytes = 0  # in this round of the event loop
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # their bytes are counted

    def add(self, key: Key, count: int) -> None:
        """Count bytes that have arrived; drop others to make room for them, or this key if there is no other."""
        self._incoming[key] = self._incoming.get(key, 0) + count
        self.total += count
        while self.total > self._most and key in self._incoming:
            self._drop_oldest(but=key)

    def subtract(self, key: Key, count: int) -> None:
        """Stop counting a whole message of this key as incoming. The bytes that follow it count as new."""
        arrived = self._incoming.pop(key, 0)
        left = arrived - count
        if left > SLACK_BYTES:
            self._incoming[key] = left
            arrived -= left
        self.total -= arrived

    def forget(self, key: Key) -> None:
        """Stop counting the incoming bytes of this key."""
        self.total -= self._incoming.pop(key, 0)

    def turn(self, count: int) -> BodyTurn:
        """Return the turn to work on a whole body of so many bytes, after those that came before."""
        return BodyTurn(self, count)

    async def begin_work(self, count: int) -> None:
        """Count a whole body and wait for its turn; only ``BodyTurn`` calls this.

        Raises:
            ApiError: 503, there is no room, or the turn does not come.
        """
        self.count_whole(count)
        try:
            self._make_room()
            await self._take_turn(count)
        except BaseException:
            self.count_whole(-count)
            raise

    def count_whole(self, count: int) -> None:
        """Count the bytes of a whole body; only ``BodyTurn`` calls this."""
        self.total += count

    def _make_room(self) -> None:
        while self.total > self._most and self._incoming:
            self._drop_oldest()
        if self.total > self._most:
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
                self._admit()  # those behind it may have room
            if isinstance(error, TimeoutError):
                raise too_many_bytes() from None
            raise

    def end_work(self, count: int) -> None:
        """End the work on so many bytes; only ``BodyTurn`` calls this."""
        self._in_work -= count
        self._admit()

    def reserve_aside(self, count: int) -> None:
        """Count bytes of a request that waits for a place of the batch lane; only ``BodyTurn`` calls this.

        Raises:
            ApiError: 503, there are too many.
        """
        if count > 0 and self._aside + count > self._most * ASIDE_SHARE:
            raise too_many_bytes()
        self._aside += count

    def _has_place(self, count: int) -> bool:
        fits = not self._in_work or self._in_work + count <= self._most_in_work
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
            if not turn.cancelled():  # else its client is gone
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
