"""Idempotent producers: which batches of which producer a partition already has. Pure.

As in Kafka, each producer's last five batches are remembered per partition: a retry of one of them is acknowledged
again with its first offset and not appended; a gap in the sequence is rejected. A producer that is not known (new, or
forgotten) may begin at any sequence number.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode

REMEMBERED_BATCHES = 5
REMEMBERED_PRODUCERS = 1000  # per partition; beyond that the one idle for longest is forgotten
_SEQUENCES = 2**31
NO_PRODUCER = -1


class BatchSequence(NamedTuple):
    """A batch's place in its producer's sequence."""

    producer_id: int
    epoch: int
    first: int
    records: int

    @property
    def last(self) -> int:
        """Return the sequence number of the last record; numbers wrap after 2^31 - 1."""
        return (self.first + self.records - 1) % _SEQUENCES


class RememberedBatch(NamedTuple):
    """A batch that a retry is recognised by."""

    first: int
    last: int
    offset: int
    time_ms: int  # the largest of the batch; as in Kafka, the response to a retry has it


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class ProducerStates:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def check_sequence(self, batch: BatchSequence) -> RememberedBatch | ErrorCode:
        """Return `ErrorCode.NONE` to append, the `RememberedBatch` of a retry, or the error of a rejected batch."""
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
        for kept in known.batches:
            if kept.first == batch.first and kept.last == batch.last:
                return kept
        expected = (known.batches[-1].last + 1) % _SEQUENCES
        return ErrorCode.NONE if batch.first == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def remember(self, batch: BatchSequence, offset: int, time_ms: int) -> None:
        """Note that a batch was appended at `offset`; `time_ms` is its largest timestamp."""
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
        """Return all producers, the longest idle first."""
        return [(pid, each.epoch, list(each.batches)) for pid, each in self._known.items()]

    @classmethod
    def restored(cls, stored: list["StoredProducer"]) -> "ProducerStates":
        """Return the state that `stored` turned into a value."""
        producers = cls()
        for pid, epoch, remembered in stored:
            known = producers._known[pid] = _Producer(epoch)
            known.batches.extend(remembered)
        return producers


StoredProducer = tuple[int, int, list[RememberedBatch]]
"""A producer's id, its epoch, and its remembered batches."""
