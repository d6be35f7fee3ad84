"""Which records a producer sends next: pure bookkeeping of order and urgency, no I/O.

Each partition has at most one batch in flight. Meanwhile the later records wait and become the next batch, so a busy
partition needs no linger time. A record either may linger (a chunk in the middle of an answer), or is urgent: then the
records that wait are sent with it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.base import AnyEvent
from schemas.stream import Chunk
from services.bus.records import Partition

BATCH_BYTES: Final = 524_288
"""Maximum size of a batch in bytes. A record that is larger is sent in a batch of its own."""

RECORD_OVERHEAD: Final = 64
"""Bytes counted for a record in addition to its key and value: headers, lengths, bookkeeping."""


class OutgoingRecord(NamedTuple):
    """One record to send; ``ack`` is the caller's future, opaque here; ``size`` is the result of ``record_size``."""

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
    """The queues of one producer, one for each partition."""

    __slots__ = ("_queues", "count")

    def __init__(self) -> None:
        self._queues: dict[Partition, _PartitionQueue] = {}
        self.count = 0
        """Number of records that are not acknowledged yet."""

    def put(self, partition: Partition, record: OutgoingRecord, *, urgent: bool) -> bool:
        """Queue a record; return whether to drain now."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _PartitionQueue()
        queue.waiting.append(record)
        self.count += 1
        queue.due = queue.due or urgent
        return urgent and not queue.sent

    def drain(self) -> Iterator[tuple[Partition, list[OutgoingRecord]]]:
        """Yield the next batch of each partition that has none in flight; mark the other partitions as due."""
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
        """Remove the batch in flight after its answer; return whether to drain now."""
        queue = self._queues[partition]
        self.count -= len(queue.sent)
        queue.sent = []
        return queue.due and bool(queue.waiting)

    def requeue_sent(self) -> int:
        """Put all batches in flight back at the front, to be sent again in order; return how many records."""
        recalled = 0
        for queue in self._queues.values():
            if queue.sent:
                recalled += len(queue.sent)
                queue.waiting.extendleft(reversed(queue.sent))
                queue.sent = []
                queue.due = True
        return recalled

    def split_batch(self, partition: Partition) -> None:
        """Send the records of the batch in flight one by one after the next requeue, because it was too large."""
        self._queues[partition].alone = len(self._queues[partition].sent)

    def take_all(self) -> dict[Partition, list[OutgoingRecord]]:
        """Empty the outbox; return everything not acknowledged, in order."""
        left = {partition: [*queue.sent, *queue.waiting] for partition, queue in self._queues.items()}
        self._queues.clear()
        self.count = 0
        return {partition: records for partition, records in left.items() if records}


def record_size(key: bytes | None, value: bytes) -> int:
    """Return how many bytes a record counts for."""
    return len(value) + len(key or b"") + RECORD_OVERHEAD


def may_linger(event: AnyEvent) -> bool:
    """Return whether an event may wait to share a batch: a chunk after its run's first.

    Everything else goes at once, so that the time to the first token, verdicts, recalls and endings are not delayed.
    """
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
