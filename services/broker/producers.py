"""Idempotent producers: which batches of which producer a partition already has. Pure.

As in Kafka, each producer's last five batches are remembered per partition: a retry of one of them is acknowledged
again with its first offset and not appended; a gap in the sequence is refused. A producer that is not known (new, or
forgotten) may begin at any sequence number.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from services.broker.codes import Code

REMEMBERED_BATCHES = 5
REMEMBERED_PRODUCERS = 1000  # per partition; past it the one idle for longest is forgotten
_SEQUENCES = 2**31
NO_PRODUCER = -1


class Sequenced(NamedTuple):
    """Where a producer's batch stands in its sequence."""

    producer_id: int
    epoch: int
    first: int
    records: int

    @property
    def last(self) -> int:
        """The sequence number of the last record; numbers wrap after 2^31 - 1."""
        return (self.first + self.records - 1) % _SEQUENCES


class Kept(NamedTuple):
    """A remembered batch."""

    first: int
    last: int
    offset: int
    time_ms: int  # the largest of the batch: as in Kafka, a retry is told it


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[Kept] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def judge(self, batch: Sequenced) -> Kept | Code:
        """What to do with a batch: `Code.NONE` append it, `Kept` it is here already, any other code refuse it."""
        if batch.producer_id == NO_PRODUCER:
            return Code.NONE
        if batch.epoch < 0 or batch.first < 0:
            return Code.INVALID_RECORD
        known = self._known.get(batch.producer_id)
        if known is None:
            return Code.NONE
        if batch.epoch < known.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if batch.epoch > known.epoch:
            return Code.NONE if batch.first == 0 else Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        for kept in known.batches:
            if kept.first == batch.first and kept.last == batch.last:
                return kept
        expected = (known.batches[-1].last + 1) % _SEQUENCES
        return Code.NONE if batch.first == expected else Code.OUT_OF_ORDER_SEQUENCE_NUMBER

    def remember(self, batch: Sequenced, offset: int, time_ms: int) -> None:
        """A batch was appended at `offset`; `time_ms` is its largest timestamp."""
        if batch.producer_id == NO_PRODUCER:
            return
        known = self._known.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self._known[batch.producer_id] = _Producer(batch.epoch)
        known.batches.append(Kept(batch.first, batch.last, offset, time_ms))
        self._known.move_to_end(batch.producer_id)
        if len(self._known) > REMEMBERED_PRODUCERS:
            self._known.popitem(last=False)
