"""The delivery of one request to one client: events in, bytes out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from schemas.requests import Request
from schemas.side_events import DetachReason, Transport
from services.edge.delivery.client_writer import CATCH_UP_BATCH_BYTES, ClientWriter, WriteFailure
from services.edge.delivery.held_events import HeldEvents
from services.edge.delivery.session import CatchUpOps, DeliverySession, Encoder
from services.edge.delivery.stats import PositionedOp
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent, OpId
from services.runtime.clock import now_us, steady_us

EXPIRY_MARGIN_US: Final = 2_000_000
"""How long after a request's total deadline the edge ends a stream for which the router has written no ``Closed``."""

KEEPALIVE_S: Final = 15.0
"""A stream that is silent for this long gets a keep-alive, so that no proxy drops it as idle."""

SLOW_CLIENT_ERROR: Final = ApiError(
    503, "The client read too slowly and was dropped: resume at the last id.", code="slow_client"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """The client's connection.

    Attributes:
        name: Unique per connection and request.
        until_closed: Whether the stream ends with the ``Close`` op; otherwise it ends with the answer.
        resumed_from: The last op that the client has; None at a first connection.
    """

    name: str
    transport: Transport
    until_closed: bool
    resumed_from: OpId | None = None


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a stream needs of its request: without the prompt, which is on the log and may be large.

    Attributes:
        request_id: Its id.
        tenant: Whose it is.
        at: When it came, in microseconds since the epoch.
        waited_ms: How long its client had waited before it was put on the log.
        total_ms: Its total deadline.
    """

    request_id: str
    tenant: str
    at: int
    waited_ms: float
    total_ms: int

    @classmethod
    def of(cls, request: Request, unread_us: int = 0) -> Self:
        """Return it for a request that had waited to be read for ``unread_us`` before its ``waited_ms`` began."""
        waited_ms = request.waited_ms + unread_us / 1_000
        return cls(request.request_id, request.tenant, request.at, waited_ms, request.deadlines.total_ms)


class History(NamedTuple):
    """The ops that a client lacks, folded from all events before ``end_offset``."""

    ops: CatchUpOps
    end_offset: int


class Subscription:
    """The stream of one request's ops to one client.

    Attributes:
        history: What to send first; None for a new request.
        on_log: Set when an event of the request was read, when its write was acknowledged, or when the stream ended.
        ended: Set at the end.
        reason: Why it ended; None before.
        ended_us: When its last bytes were about to be written, by the time of day; 0 before. An answer that ended
            before its client could be written to, such as a denied one, is written later than it ended.
        quiet_since_us: When it last wrote to the client.
        opened_us: When it was opened. If no router answers, the stream ends at the total deadline counted from here, by
            this process's clock, because the clocks of two hosts cannot be compared.
    """

    __slots__ = ("_buffered", "_held", "_is_on_log", "_on_detached", "_on_end", "_out", "_staged", "_writer",
                 "connection", "encoder", "ended", "ended_us", "history", "on_log", "opened_us", "quiet_since_us",
                 "reason", "request", "session")  # fmt: skip

    def __init__(
        self, *, request: OpenRequest, session: DeliverySession, encoder: Encoder, connection: ClientConnection,
        catching_up: bool, on_end: Callable[["Subscription"], None], on_detached: Callable[["Subscription"], None],
    ) -> None:  # fmt: skip
        """Open the stream.

        Args:
            request: The request whose answer is delivered.
            session: The fold of that request.
            encoder: Encodes ops as bytes.
            connection: The connection of the client.
            catching_up: Whether a history is to be sent first.
            on_end: Called once, when the stream has ended, to free what it held.
            on_detached: Called once, when the last bytes were written or it is certain that they never will be.
        """
        self.request = request
        self.session = session
        self.encoder = encoder
        self.connection = connection
        self.history: History | None = None
        self.on_log = asyncio.Event()
        self._is_on_log = False
        self.ended = asyncio.Event()
        self.reason: DetachReason | None = None
        self.ended_us = 0
        self.quiet_since_us = self.opened_us = steady_us()
        self._on_end = on_end
        self._on_detached: Callable[[Subscription], None] | None = on_detached
        self._held = HeldEvents() if catching_up else None  # None once the history was sent
        self._out: list[bytes] = []
        self._staged = 0
        self._writer: ClientWriter | None = None
        self._buffered: list[PositionedOp] = []

    @property
    def early_error(self) -> ApiError | None:
        """The error of a stream that ended before it sent anything."""
        return None if self.reason is None or self._has_begun else self.encoder.error

    @property
    def _has_begun(self) -> bool:
        return self._writer is not None and self._writer.has_begun

    def expired(self, at_us: int) -> bool:
        """Return whether the stream is past its deadline; always False before its history was sent."""
        deadline_us = self.opened_us + self.request.total_ms * 1_000
        return self._held is None and at_us >= deadline_us + EXPIRY_MARGIN_US

    def push(self, logged: LoggedEvent, at_us: int) -> None:
        """Fold an event of the request; ``flush`` sends the resulting ops."""
        if not self._is_on_log:
            self._is_on_log = True
            self.on_log.set()
        if self.reason is not None:
            return
        if self._held is not None:
            if not self._held.hold(logged):
                self.end("slow", SLOW_CLIENT_ERROR)
            return
        self._take(logged, at_us)
        self._end_if_over()

    def flush(self) -> None:
        """Send the pending ops in one write."""
        if self._out and self._held is None:
            self._write()

    async def serve(self, writer: ClientWriter | None, keepalive: bytes = b"") -> None:
        """Send the history, then new events; return at the stream's end.

        Args:
            writer: The client's writer, unless it is attached; None for a whole completion, which the caller sends
                after the end.
            keepalive: The bytes to send while the stream is silent; empty if the connection has its own keep-alive.
        """
        if writer is not None and self._writer is None:
            self.attach(writer)
        history, self.history = self.history, None  # it may be large
        if history is not None:
            await self.catch_up(history.ops, history.end_offset)
        while not await is_set_within(self.ended, KEEPALIVE_S):
            self._keep_alive(keepalive)

    def attach(self, writer: ClientWriter) -> None:
        """Write to the client from now on."""
        self._writer = writer
        if self._out and (self._held is None or self.reason is not None):
            self._write()
        if self.reason is not None:
            self._detached()

    def written_whole(self) -> None:
        """Note that the completion of a stream without a writer is about to be written."""
        self.ended_us = now_us()
        self._detached()

    async def catch_up(self, caught_up: CatchUpOps, end_offset: int) -> None:
        """Send the history as fast as the client reads it, then the events that arrived meanwhile.

        Once a recall arrives, no text that it takes back is sent: the unsent rest of the history and the held events
        are shortened first.

        Args:
            caught_up: The history.
            end_offset: Offset of the first event after the history. Events from there on were held.
        """
        held = self._held = self._held or HeldEvents()
        following: CatchUpOps | None = caught_up
        while following is not None:
            unsent = await self._send(following, held)
            following = None if self.reason is not None else held.next_ops(self.session, unsent, end_offset)
        self._held = None
        if self.reason is None:
            self.flush()
            self._end_if_over()

    async def _send(self, caught_up: CatchUpOps, held: HeldEvents) -> tuple[PositionedOp, ...]:
        """Send the ops until a recall arrives; return the unsent ones."""
        pieces, done = iter(self.encoder.catch_up(caught_up)), 0
        while not held.recall_pending and self.reason is None and (piece := next(pieces, None)) is not None:
            items, data = piece
            self._stage(items, data, steady_us())
            done += len(items)
            await self._drain()
        return () if self.encoder.error is not None else caught_up.ops[done:]

    def end(self, reason: DetachReason, error: ApiError | None = None, *, withhold: bool = False) -> None:
        """End the stream, once. Send the pending ops, unless the client is gone or must not have them.

        A client that leaves when the answer is complete, but not written yet, counts as gone too.

        Args:
            reason: Why the stream ends.
            error: The error that the client is told.
            withhold: Whether text that is not sent yet may have been taken back.
        """
        if self.reason is not None:
            if self.reason == "complete" and reason == "gone" and self._on_detached is not None:
                self.reason = reason
                self._detached()
            return
        if withhold:
            self._out.clear()
        self.reason = reason
        self.encoder.error = self.encoder.error or error
        if self.encoder.buffered and reason == "complete":
            for item in self._buffered:
                self.session.stats.record_sent(item, steady_us())
        if reason != "gone":
            self._out.append(self.encoder.encode_end())
        self.ended_us = now_us()
        self._write()
        self._on_end(self)  # after the write: the client does not wait for it
        if self._writer is not None or reason != "complete":
            self._detached()
        self.on_log.set()
        self.ended.set()

    def _detached(self) -> None:
        on_detached, self._on_detached = self._on_detached, None
        if on_detached is not None:
            on_detached(self)

    def _keep_alive(self, data: bytes) -> None:
        quiet = steady_us() - self.quiet_since_us >= KEEPALIVE_S * 1_000_000
        if data and quiet and self._writer is not None and not self._out:
            self._end_on_write_failure(self._writer.write(data))

    def _take(self, logged: LoggedEvent, at_us: int) -> None:
        for item in self.session.feed(logged):
            self._stage((item,), self.encoder.encode(item), at_us)
            if self.encoder.error is not None:
                return

    def _stage(self, items: Sequence[PositionedOp], data: bytes, at_us: int) -> None:
        if self.encoder.buffered:
            self._buffered.extend(items)
            return
        for item in items:
            self.session.stats.record_sent(item, at_us)
        if data:
            self._out.append(data)
            self._staged += len(data)

    def _end_if_over(self) -> None:
        if self.encoder.error is not None:
            self.end("error")
        elif self.session.closed or (self.session.answered and not self.connection.until_closed):
            self.end("complete")

    async def _drain(self) -> None:
        """Apply flow control while catching up, instead of the limit on unread bytes."""
        if self._staged < CATCH_UP_BATCH_BYTES or self._writer is None or self.reason is not None:
            return
        self._write(draining=True)
        self._end_on_write_failure(await self._writer.drain())

    def _write(self, *, draining: bool = False) -> None:
        if self._writer is None:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._staged = 0
        self.quiet_since_us = steady_us()
        if self.early_error is not None:
            return  # it is the response
        last = self.reason is not None and self.reason != "gone"
        if last:
            self.ended_us = now_us()  # again, with as little as possible between it and the write
        failure = self._writer.write(data, last=last) if data or last else None
        if failure == "gone" or not draining:
            self._end_on_write_failure(failure)

    def _end_on_write_failure(self, failure: WriteFailure | None) -> None:
        if failure is not None:
            self.end(failure, SLOW_CLIENT_ERROR if failure == "slow" else None)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; return whether it was set in that time."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
