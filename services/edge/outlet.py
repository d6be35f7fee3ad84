"""Bytes out to one client: one write each, a bounded buffer, no waiting."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

Trouble = Literal["gone", "slow"]

SLICE: Final = 65_536
"""A history goes out in pieces of about this many bytes; the next waits until the client has taken the last."""

SETTLE_S: Final = 30.0
"""Longest time a client may take for one of them."""

_POLL_S: Final = 0.01


class Outlet:
    """A client's connection.

    Args:
        transport: Where to.
        limit: Most bytes that may wait in the process for the client to read them.
        wrap: Put around each write, such as a chunked body's framing.
    """

    __slots__ = ("_limit", "_transport", "_wrap")

    def __init__(
        self, transport: asyncio.WriteTransport, limit: int, wrap: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._transport = transport
        self._limit = limit
        self._wrap = wrap

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken from the process yet."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> Trouble | None:
        """Send the bytes, unless the client is gone. One that was too far behind before them gets them as its last."""
        if self._transport.is_closing():
            return "gone"
        behind = self.waiting > self._limit
        self._transport.write(data if self._wrap is None else self._wrap(data))
        return "slow" if behind else None

    def abort(self) -> None:
        """Drop the connection with all that waits."""
        self._transport.abort()

    async def settle(self) -> Trouble | None:
        """Wait until the client has taken most of what was sent."""
        for _ in range(int(SETTLE_S / _POLL_S)):
            if self._transport.is_closing():
                return "gone"
            if self.waiting <= min(SLICE, self._limit):
                return None
            await asyncio.sleep(_POLL_S)
        return "slow"
