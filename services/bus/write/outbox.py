"""Decide which records a producer sends next. No I/O.

Each partition has at most one batch in flight. Until the broker has answered it, further records of the partition are
queued. They form the next batch. A chunk in the middle of an answer may linger; every other record is urgent. An urgent
record is sent as soon as its partition has no batch in flight, together with the records that linger.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.base import AnyEvent
from schemas.stream import Chunk
from services.bus.records import Partition

BATCH_BYTES: Final = 524_288
"""Maximum size of a batch in bytes. A larger record is sent in a batch of its own."""

RECORD_OVERHEAD: Final = 64
"""Number of bytes counted for each record in addition to its key and value, for headers, lengths and bookkeeping."""


class OutgoingRecord(NamedTuple):
    """A record to send. ``size`` is the result of ``record_size``."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int
    ack: Any
    size: int


@dataclass(slots=True)
class _PartitionQueue:
    waiting: deque[OutgoingRecord] = field(default_factory=deque)
    sent: list[OutgoingRecord] = field(default_factory=list)
    due: bool = False
    alone: int = 0


class Outbox:
    __slots__ = ("_queues", "count")

    def __init__(self) -> None:
        self._queues: dict[Partition, _PartitionQueue] = {}
        self.count = 0
        """Number of records that are not acknowledged yet."""

    def put(self, partition: Partition, record: OutgoingRecord, *, urgent: bool) -> bool:
        """Queue a record. Return whether to call ``drain`` now."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _PartitionQueue()
        queue.waiting.append(record)
        self.count += 1
        queue.due = queue.due or urgent
        return urgent and not queue.sent

    def drain(self) -> Iterator[tuple[Partition, list[OutgoingRecord]]]:
        """Yield the next batch of each partition that has waiting records and no batch in flight."""
        for partition, queue in self._queues.items():
            if not queue.waiting:
                continue
            if queue.sent:
                queue.due = True
                continue
            queue.sent = _next_batch(queue.waiting, alone=queue.alone > 0)
            queue.alone = max(0, queue.alone - 1)
            queue.due = bool(queue.waiting)
            yield partition, queue.sent

    def complete_batch(self, partition: Partition) -> bool:
        """Remove the batch in flight after it was acknowledged or refused. Return whether to call ``drain`` now."""
        queue = self._queues[partition]
        self.count -= len(queue.sent)
        queue.sent = []
        return queue.due and bool(queue.waiting)

    def requeue_sent(self) -> int:
        """Move the batches in flight back to the front of their queues, in order. Return the number of records."""
        recalled = 0
        for queue in self._queues.values():
            if queue.sent:
                recalled += len(queue.sent)
                queue.waiting.extendleft(reversed(queue.sent))
                queue.sent = []
                queue.due = True
        return recalled

    def split_batch(self, partition: Partition) -> None:
        """Mark the batch in flight as too large. After ``requeue_sent``, each of its records is sent alone."""
        self._queues[partition].alone = len(self._queues[partition].sent)

    def take_all(self) -> dict[Partition, list[OutgoingRecord]]:
        left = {partition: [*queue.sent, *queue.waiting] for partition, queue in self._queues.items()}
        self._queues.clear()
        self.count = 0
        return {partition: records for partition, records in left.items() if records}


def record_size(key: bytes | None, value: bytes) -> int:
    return len(value) + len(key or b"") + RECORD_OVERHEAD


def may_linger(event: AnyEvent) -> bool:
    return type(event) is Chunk and event.seq > 0


def _next_batch(waiting: deque[OutgoingRecord], *, alone: bool) -> list[OutgoingRecord]:
    batch = [waiting.popleft()]
    if alone or not waiting:
        return batch
    size = batch[0].size
    while waiting and size + waiting[0].size <= BATCH_BYTES:
        record = waiting.popleft()
        size += record.size
        batch.append(record)
    return batch
