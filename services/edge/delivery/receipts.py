"""Write the receipts of client connections to ``railbus.receipts``."""

import asyncio
from typing import Final

from schemas.base import envelope
from schemas.side_events import Attached, Detached
from schemas.topics import RECEIPTS
from services.bus import Producer
from services.edge.delivery.subscription import Subscription
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.runtime.metrics import DETACHED, EDGE_TTFT, EXPOSED_TOKENS, EXPOSURE_MS, SENDS_DROPPED, labelled

_log = logger("edge")

MAX_WAITING: Final = 20_000
"""Maximum number of queued receipts while the log is unavailable. Further ones are dropped, and an error is logged."""


class ReceiptWriter:
    """Writes an event ``Attached`` when a stream to a client begins, and an event ``Detached`` when it ends.

    While the producer's buffer is full, the events are queued.
    """

    def __init__(self, producer: Producer, source: str) -> None:
        self._producer = producer
        self._source = source
        self._waiting: asyncio.Queue[Attached | Detached] = asyncio.Queue(MAX_WAITING)
        self._dropping = False
        self._writes = False
        self._attached: set[str] = set()

    async def run(self) -> None:
        while True:
            await self._write(await self._waiting.get())

    async def flush(self) -> None:
        """Write all queued events. Call this before the process ends."""
        while not self._waiting.empty():
            await self._write(self._waiting.get_nowait())

    def record_attached(self, stream: Subscription) -> None:
        after = stream.connection.resumed_from
        self._attached.add(stream.connection.name)
        self._put(
            Attached(
                **envelope(stream.request, at=now_us(), source=self._source),
                connection=stream.connection.name,
                transport=stream.connection.transport,
                partition=stream.session.partition,
                resumed_from=None if after is None else str(after),
            )
        )

    def record_detached(self, stream: Subscription) -> None:
        """Write the event ``Detached`` of an ended stream, if ``record_attached`` was called for the stream."""
        if stream.connection.name not in self._attached:
            return
        self._attached.discard(stream.connection.name)
        reason = stream.reason or "error"
        receipt = stream.session.stats.receipt(
            envelope(stream.request, at=stream.ended_us, source=self._source),
            connection=stream.connection.name,
            reason=reason,
            received_us=stream.opened_us - int(stream.request.waited_ms * 1_000),
        )
        labelled(DETACHED, reason).inc()
        if reason == "slow":
            SENDS_DROPPED.inc()
        is_first = stream.connection.resumed_from is None
        if receipt.first_text_ms is not None and is_first and stream.request.lane == "interactive":
            EDGE_TTFT.observe(receipt.first_text_ms)
        EXPOSED_TOKENS.observe(receipt.exposed_tokens)
        if receipt.recalled_tokens:
            EXPOSURE_MS.observe(receipt.exposure_ms)
        self._put(receipt)

    def _put(self, receipt: Attached | Detached) -> None:
        try:
            if not self._writes and self._waiting.empty() and self._producer.post_now(RECEIPTS, receipt) is not None:
                return
            self._waiting.put_nowait(receipt)
        except asyncio.QueueFull:
            if not self._dropping:
                _log.error("the log is unavailable and %d receipts wait: further ones are dropped", MAX_WAITING)
            self._dropping = True
        except Exception as error:  # noqa: BLE001 - whatever has ended the producer, the stream must still end
            _log.error("a receipt is dropped: %s", error)

    async def _write(self, receipt: Attached | Detached) -> None:
        self._writes = True
        try:
            await self._producer.post(RECEIPTS, receipt)
            self._dropping = False
        except Exception as error:  # noqa: BLE001 - as in ``_put``
            _log.error("a receipt is dropped: %s", error)
        finally:
            self._writes = False
