"""Find out from the kernel's timestamps when a client's bytes reached this host."""

import asyncio
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final, Protocol

from services.runtime.clock import now_us

SO_TIMESTAMPNS: Final = 35
"""Number of the Linux socket option and of its control messages. Python's ``socket`` module does not define it."""

_TIMESPEC: Final = struct.Struct("@ll")
_CONTROL_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_PEEK: Final = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)

MAX_UNREAD_US: Final = 10_000_000
"""Maximum age of a timestamp, in microseconds. An older or future one is not used: the clock was set meanwhile."""

READ_BYTES: Final = 262_144

_read_buffer: Final = bytearray(READ_BYTES)
"""One buffer for all connections. Its bytes are copied out before the event loop reads from another connection."""


def request_timestamps(sockets: Iterable[Any]) -> bool:
    """Turn on the kernel's receive timestamps for connections that these sockets accept.

    Return False if the kernel does not support such timestamps.
    """
    if sys.platform != "linux":
        return False
    try:
        for listening in sockets:
            listening.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def unread_since_us(connection: socket.socket, read_us: int) -> int:
    """Return the time at which the first unread byte reached this host, in microseconds since the epoch.

    If the kernel has no plausible timestamp for this byte, return ``read_us``, the present time.
    """
    try:
        _, messages, _, _ = connection.recvmsg(1, _CONTROL_BYTES, _PEEK)
    except OSError:
        return read_us
    for level, kind, data in messages:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            arrived_us: int = seconds * 1_000_000 + nanoseconds // 1_000
            return arrived_us if read_us - MAX_UNREAD_US <= arrived_us <= read_us else read_us
    return read_us


class TimedHandler(Protocol):
    """An asyncio protocol whose method ``bytes_arrived`` gets bytes and the time at which they reached this host."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...

    def bytes_arrived(self, data: bytes, since_us: int) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class TimedProtocol(asyncio.BufferedProtocol):
    """Passes received bytes to a ``TimedHandler``, with the time at which they reached this host."""

    __slots__ = ("_handler", "_since_us", "_socket")

    def __init__(self, handler: TimedHandler) -> None:
        self._handler: TimedHandler | None = handler
        self._since_us = 0
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        known = transport.get_extra_info("socket")
        if known is not None:
            # The event loop's socket object has no ``recvmsg``. This one shares its descriptor, and never closes it.
            self._socket = socket.socket(known.family, known.type, known.proto, fileno=known.fileno())
        if self._handler is not None:
            self._handler.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        read_us = now_us()  # the event loop reads after this call, and then the kernel's timestamp is lost
        self._since_us = read_us if self._socket is None else unread_since_us(self._socket, read_us)
        return _read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._handler is not None:
            self._handler.bytes_arrived(bytes(memoryview(_read_buffer)[:nbytes]), self._since_us)

    def eof_received(self) -> bool | None:
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(exc)
