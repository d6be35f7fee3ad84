"""Write to one client, and detect that the client reads too slowly."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

WriteFailure = Literal["gone", "slow"]

CATCH_UP_BATCH_BYTES: Final = 65_536
"""A history is sent in pieces of about this many bytes or fewer. Before each piece, the edge waits until the client has
read most of the previous one."""

DRAIN_TIMEOUT_S: Final = 30.0
"""Maximum time for a client to read most of a piece of a history, in seconds. After it, the stream ends as ``slow``."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Maximum time for a client to read the last bytes, in seconds."""

_POLL_S: Final = 0.01


class ClientWriter:
    """Writes bytes to one connection.

    Args:
        limit: Maximum number of bytes that the transport may buffer for the client.
        wrap: Converts the data of each write to the bytes to send, for example to an HTTP chunk.
        head: Head of the response. It is sent together with the first bytes.
        terminator: End of the body. It is sent together with the last bytes.
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
        return self._transport.get_write_buffer_size()

    @property
    def piece_bytes(self) -> int:
        """Size of the pieces in which a history is sent.

        With a small limit, the pieces are small too, so that other streams of the connection have room beside them.
        """
        return min(CATCH_UP_BATCH_BYTES, self._limit // 4)

    @property
    def has_begun(self) -> bool:
        return not self._head

    def begin(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def write(self, data: bytes, *, last: bool = False) -> WriteFailure | None:
        """Write data without waiting. Set ``last`` if the body ends with this data.

        Returns:
            ``gone`` if the client has disconnected. ``slow`` if the transport's buffer had more than ``limit`` bytes
                before this write: the data is written, but the caller must now end the stream or wait for ``drain``.
                Otherwise None.
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
        self._transport.abort()

    async def drain(self) -> WriteFailure | None:
        """Wait until the transport's buffer has room.

        Returns:
            ``gone`` if the client has disconnected. ``slow`` if the wait takes longer than ``DRAIN_TIMEOUT_S``.
            Otherwise None.
        """
        for _ in range(int(DRAIN_TIMEOUT_S / _POLL_S)):
            if self._transport.is_closing():
                return "gone"
            if self.unread_bytes <= self.piece_bytes:
                return None
            await asyncio.sleep(_POLL_S)
        return "slow"

    async def close(self) -> None:
        """Wait until the transport's buffer is empty.

        If it is not empty after ``CLOSE_TIMEOUT_S``, abort the connection.
        """
        for _ in range(int(CLOSE_TIMEOUT_S / _POLL_S)):
            if not self.unread_bytes or self._transport.is_closing():
                return
            await asyncio.sleep(_POLL_S)
        self._transport.abort()
