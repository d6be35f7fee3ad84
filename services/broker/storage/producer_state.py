"""Idempotent producers: detect repeated batches and gaps in the sequence numbers.

As in Kafka, a partition remembers the last five batches of each producer. A repeated batch is not appended again.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode

REMEMBERED_BATCHES = 5
REMEMBERED_PRODUCERS = 1000  # per partition; beyond it, the producer that was idle for longest is forgotten
_SEQUENCES = 2**31
NO_PRODUCER = -1


class BatchSequence(NamedTuple):
    producer_id: int
    epoch: int
    first: int
    records: int

    @property
    def last(self) -> int:
        """Return the sequence number of the last record. Sequence numbers wrap to 0 after 2^31 - 1."""
        return (self.first + self.records - 1) % _SEQUENCES


class RememberedBatch(NamedTuple):
    first: int
    last: int
    offset: int
    time_ms: int  # largest timestamp of the batch; the response to a retry contains it, as in Kafka


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class ProducerStates:
    def __init__(self) -> None:
        self._known: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def check_sequence(self, batch: BatchSequence) -> RememberedBatch | ErrorCode:
        """Return ``ErrorCode.NONE`` if the batch may be appended.

        If the batch is a repetition, return the earlier batch. Otherwise return an error code.
        """
        if batch.producer_id == NO_PRODUCER:
            return ErrorCode.NONE
        if batch.epoch < 0 or batch.first < 0:
            return ErrorCode.INVALID_RECORD
        known = self._known.get(batch.producer_id)
        if known is None:
            return ErrorCode.NONE
        if batch.epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if batch.epoch > known.epoch:
            return ErrorCode.NONE if batch.first == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if batch.first == (known.batches[-1].last + 1) % _SEQUENCES:
            return ErrorCode.NONE
        for kept in known.batches:
            if kept.first == batch.first and kept.last == batch.last:
                return kept
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def remember(self, batch: BatchSequence, offset: int, time_ms: int) -> None:
        if batch.producer_id == NO_PRODUCER:
            return
        known = self._known.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self._known[batch.producer_id] = _Producer(batch.epoch)
        known.batches.append(RememberedBatch(batch.first, batch.last, offset, time_ms))
        self._known.move_to_end(batch.producer_id)
        if len(self._known) > REMEMBERED_PRODUCERS:
            self._known.popitem(last=False)

    def stored(self) -> list["StoredProducer"]:
        return [(pid, each.epoch, list(each.batches)) for pid, each in self._known.items()]

    @classmethod
    def restored(cls, stored: list["StoredProducer"]) -> "ProducerStates":
        producers = cls()
        for pid, epoch, remembered in stored:
            known = producers._known[pid] = _Producer(epoch)
            known.batches.extend(remembered)
        return producers


StoredProducer = tuple[int, int, list[RememberedBatch]]
"""A producer's id, its epoch, and its remembered batches."""
