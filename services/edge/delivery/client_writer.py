"""Writes to one client: without waiting, and with a bounded buffer."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

WriteFailure = Literal["gone", "slow"]

CATCH_UP_BATCH_BYTES: Final = 65_536
"""Approximate size of a batch of a history. Each batch waits until the client has read most of the one before it."""

DRAIN_TIMEOUT_S: Final = 30.0
"""Longest time for a client to read one batch."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Longest time for a client to read the last bytes."""

_POLL_S: Final = 0.01


class ClientWriter:
    """A client's connection.

    Args:
        transport: The connection's transport.
        limit: Maximum number of bytes that may wait in the process for the client.
        wrap: Function that frames each write, for example as a chunk of a chunked body.
        head: Head of the response. It is sent in the same write as the first bytes. Until then, another response can
            be sent instead.
        terminator: End of the body. It is sent in the same write as the last bytes, so that a client that waits for the
            end does not wait longer.
    """

    __slots__ = ("_head", "_limit", "_terminator", "_transport", "_wrap")

    def __init__(
        self, transport: asyncio.WriteTransport, limit: int, wrap: Callable[[bytes], bytes] | None = None,
        *, head: bytes = b"", terminator: bytes = b"",
    ) -> None:  # fmt: skip
        self._transport = transport
        self._limit = limit
        self._wrap = wrap
        self._head = head
        self._terminator = terminator

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait in the process for the client."""
        return self._transport.get_write_buffer_size()

    @property
    def has_begun(self) -> bool:
        """Whether the head was sent."""
        return not self._head

    def begin(self) -> None:
        """Send the head, if it was not sent."""
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def write(self, data: bytes, *, last: bool = False) -> WriteFailure | None:
        """Write the bytes, unless the client is gone. If the client is over its limit, nothing is written after this.

        Args:
            data: The bytes.
            last: Whether the body ends with them.
        """
        if self._transport.is_closing():
            return "gone"
        slow = self.unread_bytes > self._limit
        framed = self._wrap(data) if self._wrap is not None and data else data
        if last:
            framed += self._terminator
        if framed:
            self._transport.write(self._head + framed if self._head else framed)
            self._head = b""
        return "slow" if slow else None

    def abort(self) -> None:
        """Drop the connection and its unsent bytes."""
        self._transport.abort()

    async def drain(self) -> WriteFailure | None:
        """Wait until the client has read most of what was written."""
        for _ in range(int(DRAIN_TIMEOUT_S / _POLL_S)):
            if self._transport.is_closing():
                return "gone"
            if self.unread_bytes <= min(CATCH_UP_BATCH_BYTES, self._limit):
                return None
            await asyncio.sleep(_POLL_S)
        return "slow"

    async def close(self) -> None:
        """Wait until the client has read all that was written; drop the connection if it does not."""
        for _ in range(int(CLOSE_TIMEOUT_S / _POLL_S)):
            if not self.unread_bytes or self._transport.is_closing():
                return
            await asyncio.sleep(_POLL_S)
        self._transport.abort()
