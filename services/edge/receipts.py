"""Receipts go to the log beside the stream, never in front of it."""

import asyncio
from typing import Final

from schemas.base import envelope
from schemas.books import Attached, Detached
from schemas.topics import RECEIPTS
from services.bus import BusError, Producer
from services.edge.subscription import Subscription
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.runtime.metrics import DETACHED, EDGE_TTFT, SENDS_DROPPED

_log = logger("edge")

MAX_WAITING: Final = 20_000
"""Most receipts that wait for the log; while it is away longer than that takes, new ones are lost, and it is said."""


class Receipts:
    """Writes ``Attached`` and ``Detached``."""

    def __init__(self, producer: Producer, source: str) -> None:
        self._producer = producer
        self._source = source
        self._waiting: asyncio.Queue[Attached | Detached] = asyncio.Queue(MAX_WAITING)
        self._lost = False
        self._attached: set[str] = set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._write(await self._waiting.get())

    async def flush(self) -> None:
        """Write what waits; the process is ending."""
        while not self._waiting.empty():
            await self._write(self._waiting.get_nowait())

    def attached(self, one: Subscription) -> None:
        """A connection began."""
        after = one.connection.resumed_from
        self._attached.add(one.connection.name)
        self._put(
            Attached(
                **envelope(one.request, at=now_us(), source=self._source),
                connection=one.connection.name,
                transport=one.connection.transport,
                partition=one.session.partition,
                resumed_from=None if after is None else str(after),
            )
        )

    def detached(self, one: Subscription) -> None:
        """A connection ended; one that never began leaves no receipt."""
        if one.connection.name not in self._attached:
            return
        self._attached.discard(one.connection.name)
        reason = one.reason or "error"
        receipt = one.session.tally.receipt(
            envelope(one.request, at=now_us(), source=self._source),
            connection=one.connection.name,
            reason=reason,
            received_us=one.request.at,
        )
        DETACHED.labels(reason).inc()
        if reason == "slow":
            SENDS_DROPPED.inc()
        if receipt.first_text_ms is not None and one.connection.resumed_from is None:
            EDGE_TTFT.observe(receipt.first_text_ms)
        self._put(receipt)

    def _put(self, receipt: Attached | Detached) -> None:
        try:
            self._waiting.put_nowait(receipt)
        except asyncio.QueueFull:
            if not self._lost:
                _log.error("the log takes no receipts and %d wait: further ones are lost", MAX_WAITING)
            self._lost = True

    async def _write(self, receipt: Attached | Detached) -> None:
        try:
            await self._producer.post(RECEIPTS, receipt)
            self._lost = False
        except BusError as error:
            _log.error("a receipt is lost: %s", error)
