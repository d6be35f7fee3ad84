"""Deliver one request's answer to one client."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from schemas.requests import Lane, Request
from schemas.side_events import DetachReason, Transport
from services.edge.delivery.client_writer import ClientWriter, WriteFailure
from services.edge.delivery.held_events import HeldEvents
from services.edge.delivery.session import CatchUpOps, DeliverySession, Encoder
from services.edge.delivery.stats import PositionedOp
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent, OpId
from services.runtime.clock import now_us, steady_us

EXPIRY_MARGIN_US: Final = 2_000_000
"""If there is no ``Closed`` until this many microseconds after the total deadline, the edge ends the stream."""

KEEPALIVE_S: Final = 15.0
"""After this many seconds without a write, a keep-alive is sent, so that no proxy closes the connection as idle."""

SLOW_CLIENT_ERROR: Final = ApiError(
    503, "The client read too slowly and was dropped: resume at the last id.", code="slow_client"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """The connection over which a stream is sent.

    Attributes:
        name: Id of the connection in ``Attached`` and ``Detached``. Streams on the same websocket have different ids.
        until_closed: If True, the stream ends with the op ``close``. If False, the stream ends with the op that
            completes the answer, such as ``finish``.
        resumed_from: Position of the last op that the client had before the stream; None if the client had no ops.
    """

    name: str
    transport: Transport
    until_closed: bool
    resumed_from: OpId | None = None


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The data of a request that its streams need.

    Attributes:
        at: When the request reached the host of its edge, in microseconds since the epoch. The edge reads the request a
            little later.
        waited_ms: For a new stream, the time from ``at`` until the request was written to the log, in milliseconds.
            For a resumed stream, the value of ``Request.waited_ms``.
        total_ms: The total deadline, in milliseconds from the moment at which the edge read the request.
    """

    request_id: str
    tenant: str
    at: int
    waited_ms: float
    total_ms: int
    lane: Lane

    @classmethod
    def of(cls, request: Request, unread_us: int = 0) -> Self:
        waited_ms = request.waited_ms + unread_us / 1_000
        total_ms = request.deadlines.total_ms
        return cls(request.request_id, request.tenant, request.at, waited_ms, total_ms, request.lane)


class History(NamedTuple):
    ops: CatchUpOps
    end_offset: int


class Subscription:
    """The stream of one request's ops to one client.

    Args:
        catching_up: Whether the caller will set ``history``, the ops to send first. If so, new events are held back
            until the history has been sent.
        on_end: Called once, when the stream has ended.
        on_detached: Called once, when the last bytes have been written or can no longer be written.

    Attributes:
        on_log: Set when the request is on the log. Also set when its write to the log fails or takes too long, and when
            the stream ends.
        ended_us: When the stream ended, in microseconds since the epoch; 0 while the stream is open.
        quiet_since_us: When bytes were last written to the client, by the clock ``steady_us``.
        opened_us: When the stream was opened, by the clock ``steady_us``.
    """

    __slots__ = ("_buffered", "_held", "_is_on_log", "_on_detached", "_on_end", "_out", "_staged", "_writer",
                 "connection", "encoder", "ended", "ended_us", "history", "on_log", "opened_us", "quiet_since_us",
                 "reason", "request", "session")  # fmt: skip

    def __init__(
        self, *, request: OpenRequest, session: DeliverySession, encoder: Encoder, connection: ClientConnection,
        catching_up: bool, on_end: Callable[["Subscription"], None], on_detached: Callable[["Subscription"], None],
    ) -> None:  # fmt: skip
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
        self._held = HeldEvents() if catching_up else None  # None after the history was sent
        self._out: list[bytes] = []
        self._staged = 0
        self._writer: ClientWriter | None = None
        self._buffered: list[PositionedOp] = []

    @property
    def early_error(self) -> ApiError | None:
        """The error that ended the stream before the head of the HTTP response was sent; None if there is none."""
        return None if self.reason is None or self._has_begun else self.encoder.error

    @property
    def _has_begun(self) -> bool:
        return self._writer is not None and self._writer.has_begun

    def expired(self, at_us: int) -> bool:
        """Return whether the stream has lasted ``EXPIRY_MARGIN_US`` longer than the request's total deadline.

        If ``history`` must be sent first, return False until it was sent. ``at_us`` is the time now by the clock
        ``steady_us``.
        """
        deadline_us = self.opened_us + self.request.total_ms * 1_000
        return self._held is None and at_us >= deadline_us + EXPIRY_MARGIN_US

    def push(self, logged: LoggedEvent, at_us: int) -> None:
        """Process an event of the request. ``flush`` sends the resulting ops."""
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
        """Send all pending ops in one write."""
        if self._out and self._held is None:
            self._write()

    async def serve(self, writer: ClientWriter | None, keepalive: bytes = b"") -> None:
        """Send ``history``, then the ops of new events, until the stream has ended.

        Without ``writer``, send nothing, but wait for the end.

        Args:
            writer: Writes to the client; None if the caller sends the whole answer after this method has returned.
            keepalive: The bytes to send after ``KEEPALIVE_S`` without a write; empty for none.
        """
        if writer is not None and self._writer is None:
            self.attach(writer)
        history, self.history = self.history, None  # it may be large
        if history is not None:
            await self.catch_up(history.ops, history.end_offset)
        while not await is_set_within(self.ended, self._quiet_left_s()):
            self._keep_alive(keepalive)

    def attach(self, writer: ClientWriter) -> None:
        self._writer = writer
        if self._out and (self._held is None or self.reason is not None):
            self._write()
        if self.reason is not None:
            self._detached()

    def written_whole(self) -> None:
        self.ended_us = now_us()
        self._detached()

    async def catch_up(self, caught_up: CatchUpOps, end_offset: int) -> None:
        """Send the ops of past events as fast as the client reads. Then send the ops of events that arrived meanwhile.

        ``caught_up`` has the ops of all events before ``end_offset``.
        """
        # A pending recall stops ``_send``. ``next_ops`` then leaves out unsent text that the recall takes back.
        held = self._held = self._held or HeldEvents()
        following: CatchUpOps | None = caught_up
        while following is not None:
            unsent = await self._send(following, held)
            following = None if self.reason is not None else held.next_ops(self.session, unsent, end_offset)
        self._held = None
        self.session.forget_history()
        if self.reason is None:
            self.flush()
            self._end_if_over()

    async def _send(self, caught_up: CatchUpOps, held: HeldEvents) -> tuple[PositionedOp, ...]:
        if self._writer is not None:  # several streams of one websocket may send their histories at the same time
            self._end_on_write_failure(await self._writer.drain())
        # If a recall is pending, ``next_ops`` will pass these ops again, shortened. An encoder may see an op only once.
        now = replace(caught_up, ops=()) if held.recall_pending else caught_up
        pieces, done = iter(self.encoder.catch_up(now)), 0
        while not held.recall_pending and self.reason is None and (piece := next(pieces, None)) is not None:
            items, data = piece
            self._stage(items, data, steady_us())
            done += len(items)
            await self._drain()
        return () if self.encoder.error is not None else caught_up.ops[done:]

    def end(self, reason: DetachReason, error: ApiError | None = None, *, withhold: bool = False) -> None:
        """End the stream: send the pending ops, and then ``error`` or the normal end of the stream.

        With ``withhold``, drop the pending ops. If the stream ends with an error before the head of the HTTP response
        has been sent, send nothing: the caller then answers the HTTP request with ``early_error``.
        """
        if self.reason is not None:
            # The client has disconnected after its answer was complete and before the answer was written.
            if self.reason == "complete" and reason == "gone" and self._on_detached is not None:
                self.reason = reason
                self._detached()
            return
        if withhold:
            self._out.clear()
        self.reason = reason
        self.encoder.error = self.encoder.error or error
        if self.encoder.buffered:
            self._record_whole(reason)
        if reason != "gone":
            self._out.append(self.encoder.encode_end())
        self.ended_us = now_us()
        self._write()
        self._on_end(self)  # after the write, so that the client need not wait for it
        if self._writer is not None or reason != "complete":
            self._detached()
        self.on_log.set()
        self.ended.set()

    def _record_whole(self, reason: DetachReason) -> None:
        # Unchecked or recalled text that other clients saw meanwhile was not shown here.
        stats, complete = self.session.stats, reason == "complete"
        stats.exposed_tokens = self.session.exposed_tokens if complete else 0
        for item in self._buffered if complete else ():
            stats.record_unseen(item, steady_us())

    def _detached(self) -> None:
        on_detached, self._on_detached = self._on_detached, None
        if on_detached is not None:
            on_detached(self)

    def _quiet_left_s(self) -> float:
        return KEEPALIVE_S - (steady_us() - self.quiet_since_us) / 1e6

    def _keep_alive(self, data: bytes) -> None:
        if self._quiet_left_s() > 0:
            return  # something was written during the wait
        self.quiet_since_us = steady_us()
        if data and self._writer is not None and not self._out:
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
        if self._writer is None or self._staged < self._writer.piece_bytes or self.reason is not None:
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
            return  # the caller sends the error as the response
        last = self.reason is not None and self.reason != "gone"
        if last:
            self.ended_us = now_us()  # set again here, as close to the write as possible
        failure = self._writer.write(data, last=last) if data or last else None
        if failure == "gone" or not draining:
            self._end_on_write_failure(failure)

    def _end_on_write_failure(self, failure: WriteFailure | None) -> None:
        if failure is not None:
            self.end(failure, SLOW_CLIENT_ERROR if failure == "slow" else None)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
