"""One connection's share in one request: events in, bytes out, until one of several ends."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.books import DetachReason, Transport
from schemas.requests import Request
from schemas.stream import Recall
from services.edge.errors import ApiError
from services.edge.outlet import SLICE, Outlet, Trouble
from services.edge.positions import OpId
from services.edge.session import CaughtUp, Encoder, Logged, Session
from services.edge.tally import Sent
from services.runtime.clock import now_us

MAX_HELD: Final = 20_000
"""Most events that wait while a client is brought up to date; one that needs more is too slow."""

EXPIRY_MARGIN_US: Final = 2_000_000
"""The router closes a request by its total deadline; a stream still open this much later ends here."""

KEEPALIVE_S: Final = 15.0
"""A stream that is silent for so long gets a keep-alive, so that nothing in between takes it for dead."""

SLOW: Final = ApiError(503, "The client read too slowly and was dropped: resume at the last id.", code="slow_client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Who is served, and how.

    Attributes:
        name: Unique per connection and request.
        transport: How the client is connected.
        until_closed: The stream goes on to the ``Close`` op; else it ends with the answer.
        resumed_from: What the client had; None at a first connection.
    """

    name: str
    transport: Transport
    until_closed: bool
    resumed_from: OpId | None = None


class History(NamedTuple):
    """What a client lacks of an answer that is on the log already.

    Attributes:
        ops: What to send.
        end_offset: They come of all events before it.
    """

    ops: CaughtUp
    end_offset: int


class Subscription:
    """Hands a request's events on to a client.

    Attributes:
        request: What was asked.
        session: The fold.
        encoder: Turns ops into bytes.
        connection: Who is served.
        history: What to send first; None for a new request, which has none.
        started: Set when there is something to send, or the end has come.
        ended: Set at the end.
        reason: Why it ended; None before.
        quiet_since_us: When it last sent something.
    """

    __slots__ = ("_held", "_on_end", "_out", "_outlet", "_overtaken", "_staged", "_whole", "connection", "encoder",
                 "ended", "history", "quiet_since_us", "reason", "request", "session", "started")  # fmt: skip

    def __init__(
        self, *, request: Request, session: Session, encoder: Encoder, connection: Connection, behind: bool,
        on_end: Callable[["Subscription"], None],
    ) -> None:  # fmt: skip
        self.request = request
        self.session = session
        self.encoder = encoder
        self.connection = connection
        self.history: History | None = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.reason: DetachReason | None = None
        self.quiet_since_us = now_us()
        self._on_end = on_end
        self._held: list[Logged] | None = [] if behind else None  # until the history was sent
        self._overtaken = False  # what is held takes text back, perhaps such as is not sent yet
        self._out: list[bytes] = []
        self._staged = 0
        self._outlet: Outlet | None = None
        self._whole: list[Sent] = []

    @property
    def refused(self) -> ApiError | None:
        """The error of a stream that ended before anything was sent."""
        return self.encoder.error if self.reason is not None and self._outlet is None else None

    def expired(self, at_us: int) -> bool:
        """Whether the stream has to end although nobody closed the request; never before its history was sent."""
        deadline_us = self.request.at + self.request.deadlines.total_ms * 1_000
        return self._held is None and at_us >= deadline_us + EXPIRY_MARGIN_US

    def push(self, logged: Logged, at_us: int) -> None:
        """Take an event of the request; ``flush`` sends what came of it."""
        if self.reason is not None:
            return
        if self._held is not None:
            self._held.append(logged)
            self._overtaken = self._overtaken or type(logged.event) is Recall
            if len(self._held) > MAX_HELD:
                self.end("slow", SLOW)
            return
        self._take(logged, at_us)
        self._end_if_over()

    def flush(self) -> None:
        """Send what is due, as one write."""
        if self._outlet is None:
            if self._out:
                self.started.set()
            return
        if self._out and self._held is None:
            self._write()

    async def serve(self, outlet: Outlet | None, keepalive: bytes = b"") -> None:
        """Send the history, then events as they come; return at the stream's end.

        Args:
            outlet: Where to; None for an answer in one piece, which the caller sends after the end.
            keepalive: What to send while the stream is silent; nothing where the connection sees to that itself.
        """
        if outlet is not None:
            self.attach(outlet)
        history, self.history = self.history, None  # it may be large
        if history is not None:
            await self.catch_up(history.ops, history.end_offset)
        while not await is_set_within(self.ended, KEEPALIVE_S):
            self._keep_alive(keepalive)

    def attach(self, outlet: Outlet) -> None:
        """The client can be written to from now on."""
        self._outlet = outlet
        if self._out and (self._held is None or self.reason is not None):
            self._write()

    async def catch_up(self, caught_up: CaughtUp, end_offset: int) -> None:
        """Send the history as fast as the client takes it, then what came meanwhile; from then on events go straight.

        From the moment a recall is heard no text that it takes back goes out, neither of the history's rest nor of what
        came after it: both are shortened first.

        Args:
            caught_up: The history.
            end_offset: The history holds all events before it; those from there on were held back.
        """
        while True:
            unsent = await self._send(caught_up)
            held, self._held = self._held or [], []
            if self.reason is not None or not (held or unsent):
                break
            self._overtaken = False
            fresh = [sent for logged in held if logged.offset >= end_offset for sent in self.session.live(logged)]
            caught_up = self.session.overtaken([*unsent, *fresh])
        self._held = None
        if self.reason is None:
            self.flush()
            self._end_if_over()

    async def _send(self, caught_up: CaughtUp) -> tuple[Sent, ...]:
        """Send it until a recall overtakes it; returns what was not sent."""
        pieces, done = iter(self.encoder.catch_up(caught_up)), 0
        while not self._overtaken and self.reason is None and (piece := next(pieces, None)) is not None:
            sents, data = piece
            self._stage(sents, data, now_us())
            done += len(sents)
            await self._settle()
        return () if self.encoder.error is not None else caught_up.ops[done:]

    def end(self, reason: DetachReason, error: ApiError | None = None) -> None:
        """End the stream, once; what was not sent is, as far as the reason lets it."""
        if self.reason is not None:
            return
        self.reason = reason
        self.encoder.error = self.encoder.error or error
        if self.encoder.whole and reason == "complete":
            for sent in self._whole:
                self.session.tally.sent(sent, now_us())
        if reason != "gone":
            self._out.append(self.encoder.tail())
        self._on_end(self)
        self._write()
        self.started.set()
        self.ended.set()

    def _keep_alive(self, data: bytes) -> None:
        quiet = now_us() - self.quiet_since_us >= KEEPALIVE_S * 1_000_000
        if data and quiet and self._outlet is not None and not self._out:
            self._trouble(self._outlet.write(data))

    def _take(self, logged: Logged, at_us: int) -> None:
        for sent in self.session.live(logged):
            self._stage((sent,), self.encoder.encode(sent), at_us)
            if self.encoder.error is not None:
                return

    def _stage(self, sents: Sequence[Sent], data: bytes, at_us: int) -> None:
        if self.encoder.whole:
            self._whole.extend(sents)
            return
        for sent in sents:
            self.session.tally.sent(sent, at_us)
        if data:
            self._out.append(data)
            self._staged += len(data)

    def _end_if_over(self) -> None:
        if self.encoder.error is not None:
            self.end("error")
        elif self.session.closed or (self.session.answered and not self.connection.until_closed):
            self.end("complete")

    async def _settle(self) -> None:
        """While catching up: flow control instead of the bound."""
        if self._staged < SLICE or self._outlet is None or self.reason is not None:
            return
        self._write(settling=True)
        self._trouble(await self._outlet.settle())

    def _write(self, *, settling: bool = False) -> None:
        if self._outlet is None:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._staged = 0
        self.quiet_since_us = now_us()
        trouble = self._outlet.write(data) if data else None
        if trouble == "gone" or not settling:
            self._trouble(trouble)

    def _trouble(self, trouble: Trouble | None) -> None:
        if trouble is not None:
            self.end(trouble, SLOW if trouble == "slow" else None)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; return False when it was not set in that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
