"""Simulated producer. At most one batch per partition is in flight.

The records wait in an ``Outbox``, as in the real producer.
"""

from collections.abc import Callable
from typing import Final

from schemas.base import AnyEvent, Event
from schemas.topics import Topic
from services.bus import partition_for
from services.bus.write.outbox import Outbox, OutgoingRecord, may_linger
from services.simulator.kafka.broker import PARTITIONS, SimulatedBroker
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.simulation import MS

LINGER_US = 5 * MS

_NO_HEADERS: Final[list[tuple[str, bytes]]] = []

Posted = tuple[AnyEvent, str | None, Callable[[], None] | None]
"""An event, its ``traceparent`` header, and a function that is called when the event is acknowledged."""


class SimulatedProducer:
    def __init__(self, broker: SimulatedBroker, process: SimulatedProcess) -> None:
        self._broker = broker
        self._process = process
        self._outbox = Outbox()
        self._session = 0
        self._lingering = False

    @property
    def unacknowledged(self) -> int:
        return self._outbox.count

    def post(
        self,
        topic: Topic,
        event: AnyEvent,
        traceparent: str | None = None,
        acknowledged: Callable[[], None] | None = None,
    ) -> None:
        number = partition_for(event.request_id, PARTITIONS) if isinstance(event, Event) else 0
        posted: Posted = (event, traceparent, acknowledged)
        lingers = may_linger(event)
        record = tuple.__new__(OutgoingRecord, (None, b"", _NO_HEADERS, 0, posted, 0))  # faster than to call the class
        if self._outbox.put((topic.name, number), record, urgent=not lingers):
            self._drain()
        elif lingers and not self._lingering:
            self._lingering = True
            self._process.after(LINGER_US, self._on_linger)

    def reopen(self) -> None:
        """Open a new producer session and send unacknowledged batches again. This may duplicate records."""
        self._session += 1
        if self._outbox.requeue_sent():
            self._drain()

    def _on_linger(self) -> None:
        self._lingering = False
        self._drain()

    def _drain(self) -> None:
        for partition, records in self._outbox.drain():
            self._process.ask(self._append, self._session, partition, records)

    def _append(self, session: int, partition: tuple[str, int], records: list[OutgoingRecord]) -> None:
        for record in records:
            event, traceparent, _ = record.ack
            self._broker.append(partition, event, traceparent)
        self._process.ask(self._process.fire, self._on_acknowledged, session, partition, records)

    def _on_acknowledged(self, session: int, partition: tuple[str, int], records: list[OutgoingRecord]) -> None:
        if session != self._session:
            return
        again = self._outbox.complete_batch(partition)
        for record in records:
            acknowledged = record.ack[2]
            if acknowledged is not None:
                acknowledged()
        if again:
            self._drain()
