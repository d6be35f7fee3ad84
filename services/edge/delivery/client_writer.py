"""Writes to one client: without waiting, and with a bounded buffer."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

WriteFailure = Literal["gone", "slow"]

CATCH_UP_BATCH_BYTES: Final = 65_536
"""A history is written in batches of about this size; each waits until the client has read most of the last one."""

DRAIN_TIMEOUT_S: Final = 30.0
"""Longest time for a client to read one batch."""

_POLL_S: Final = 0.01


class ClientWriter:
    """A client's connection.

    Args:
        transport: The connection's transport.
        limit: Most bytes that may wait in the process for the client.
        wrap: Frames each write, such as a chunk of a chunked body.
        terminator: Ends the body, in the same write as its last bytes: a client that waits for the end has it then.
    """

    __slots__ = ("_limit", "_terminator", "_transport", "_wrap")

    def __init__(
        self, transport: asyncio.WriteTransport, limit: int, wrap: Callable[[bytes], bytes] | None = None,
        terminator: bytes = b"",
    ) -> None:  # fmt: skip
        self._transport = transport
        self._limit = limit
        self._wrap = wrap
        self._terminator = terminator

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait in the process for the client."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes, *, last: bool = False) -> WriteFailure | None:
        """Write the bytes, unless the client is gone. If the client is over its limit, this write is its last.

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
            self._transport.write(framed)
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
