"""Simulated stream from an edge to a client, with the real session and encoder.

It imitates ``services/edge/delivery/subscription.py``. If the order of the steps changes there, change it here too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from schemas.requests import Request
from schemas.side_events import DetachReason
from services.edge.delivery.held_events import HeldEvents
from services.edge.delivery.session import CatchUpOps, DeliverySession, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.encoders.sse import SseEncoder
from services.edge.log.positions import LoggedEvent, OpId
from services.simulator.judge.oracle import Shown
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.simulation import MS
from services.simulator.tree.screens import ScreenState

EXPIRY_MARGIN_US = 2_000 * MS
BATCH_BYTES = 300
"""Approximate size of each write while a resumed stream catches up, in bytes.

It is small, so that new events arrive between two writes.
"""
LIMIT_BYTES = 1_500
"""A client with more unread bytes than this is disconnected. It is small, so that slow clients exceed it."""


@dataclass
class ClientEnd:
    take: Callable[["Stream", bytes], None]
    ended: Callable[["Stream", DetachReason], None]
    read_us: int = 2 * MS


class Stream:
    def __init__(  # noqa: PLR0913 - a connection needs all of them
        self, process: SimulatedProcess, request: Request, session: DeliverySession, name: str, reader: ClientEnd,
        since: ScreenState, shown: Shown, after: OpId | None, *, held: HeldEvents | None,
    ) -> None:  # fmt: skip
        self.process = process
        self.request = request
        self.session = session
        self.name = name
        self.reader = reader
        self.shown = shown
        self.after = after
        self.written = since
        self.reason: DetachReason | None = None
        self.opened_us = process.simulation.now_us
        self.attached = False
        self.on_write: Callable[[Stream, bytes], None] | None = None
        self.on_end: Callable[[Stream], None] | None = None
        self._encoder = SseEncoder()
        self._held = held
        self._out: list[bytes] = []
        self._unread = 0
        self.read_at_us = 0
        self._sending: Iterator[EncodedOps] | None = None
        self._unsent: tuple[PositionedOp, ...] = ()
        self._end_offset = 0

    def push(self, logged: LoggedEvent) -> None:
        if self.reason is not None:
            return
        if self._held is not None:
            if not self._held.hold(logged):
                self.end("slow")
            return
        for item in self.session.feed(logged):
            self._stage((item,), self._encoder.encode(item))
        self._end_if_over()

    def flush(self) -> None:
        if self._out and self._held is None and self.reason is None:
            self._write()

    def catch_up(self, caught_up: CatchUpOps, end_offset: int) -> None:
        """Send the ops that the client has missed. After each write, wait until the client has read it."""
        self._end_offset = end_offset
        self._begin_sending(caught_up)

    def _begin_sending(self, caught_up: CatchUpOps) -> None:
        self._sending, self._unsent = iter(self._encoder.catch_up(caught_up)), caught_up.ops
        self._send()

    def _send(self) -> None:
        held = self._held
        if self.reason is not None or held is None or self._sending is None:
            return
        staged = 0
        while not held.recall_pending and (piece := next(self._sending, None)) is not None:
            items, data = piece
            self._stage(items, data)
            self._unsent = self._unsent[len(items) :]
            staged += len(data)
            if staged >= BATCH_BYTES:
                self._write(draining=True)
                if self.reason is None:
                    wait_us = max(0, self.read_at_us - self.process.simulation.now_us)
                    self.process.after(wait_us, self._send)
                return
        following = held.next_ops(self.session, self._unsent, self._end_offset)
        if following is not None:
            self._begin_sending(following)
            return
        self._held = None
        self.flush()
        if self.reason is None:
            self._end_if_over()

    def _stage(self, items: Sequence[PositionedOp], data: bytes) -> None:
        for item in items:
            self.session.stats.record_sent(item, self.process.now_us)
        self._out.append(data)

    def _end_if_over(self) -> None:
        if self.session.closed:
            self.end("complete")

    def end(self, reason: DetachReason, *, withhold: bool = False) -> None:
        """End the stream, unless it has ended. With ``withhold``, drop the ops that are not sent yet."""
        if self.reason is not None:
            return
        if withhold:
            self._out.clear()
        self.reason = reason
        if self.on_end is not None:
            self.on_end(self)
        if reason != "gone":
            self._write()
            self._later(self.reader.ended, self, reason)

    def _write(self, *, draining: bool = False) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if not data:
            return
        slow = self._unread > LIMIT_BYTES
        if self.on_write is not None:
            self.on_write(self, data)
        self._unread += len(data)
        self._later(self._arrive, data)
        if slow and not draining:
            self.end("slow")

    def _later(self, action: Callable[..., None], *args: object) -> None:
        simulation = self.process.simulation
        self.read_at_us = max(self.read_at_us, simulation.now_us) + self.reader.read_us
        simulation.after(self.read_at_us - simulation.now_us, action, *args)

    def _arrive(self, data: bytes) -> None:
        self._unread -= len(data)
        self.reader.take(self, data)
