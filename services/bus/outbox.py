"""What a producer still has to send: pure bookkeeping of order and haste, no I/O.

A lane is one partition. Of each lane at most one batch is on its way; the rest waits and becomes the next batch, so
that a busy lane batches by itself. A record either may linger (a chunk in the middle of an answer) or must go at once
and then takes along whatever waits.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.base import AnyEvent
from schemas.stream import Chunk

Lane = tuple[str, int]

BATCH_BYTES: Final = 524_288
"""A batch is closed at this size; a larger single record goes alone."""

RECORD_OVERHEAD: Final = 64
"""Bytes counted for a record beside its key and value: headers, lengths, bookkeeping."""


class Letter(NamedTuple):
    """One record to send; ``ack`` is the caller's future, opaque here."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int
    ack: Any

    @property
    def size(self) -> int:
        """Bytes it counts for."""
        return len(self.value) + len(self.key or b"") + RECORD_OVERHEAD


@dataclass(slots=True)
class _Queue:
    waiting: deque[Letter] = field(default_factory=deque)
    sent: list[Letter] = field(default_factory=list)
    due: bool = False
    alone: int = 0


class Outbox:
    """The lanes of one producer."""

    __slots__ = ("_lanes", "count")

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Queue] = {}
        self.count = 0
        """Records not acknowledged yet."""

    def put(self, lane: Lane, letter: Letter, *, urgent: bool) -> bool:
        """Adds a record behind those of its lane; whether it is worth draining now."""
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._lanes[lane] = _Queue()
        queue.waiting.append(letter)
        self.count += 1
        queue.due = queue.due or urgent
        return urgent and not queue.sent

    def drain(self) -> Iterator[tuple[Lane, list[Letter]]]:
        """The next batch of every lane that has none on its way. Lanes that must wait for theirs become due."""
        for lane, queue in self._lanes.items():
            if not queue.waiting:
                continue
            if queue.sent:
                queue.due = True
                continue
            queue.sent = _cut(queue.waiting, alone=queue.alone > 0)
            queue.alone = max(0, queue.alone - 1)
            queue.due = bool(queue.waiting)
            yield lane, queue.sent

    def settled(self, lane: Lane) -> bool:
        """The batch on its way is over, acknowledged or refused; whether the lane should be drained again at once."""
        queue = self._lanes[lane]
        self.count -= len(queue.sent)
        queue.sent = []
        return queue.due and bool(queue.waiting)

    def recall(self) -> int:
        """Puts all batches on their way back in front of their lanes, to be sent again in order; how many records."""
        recalled = 0
        for queue in self._lanes.values():
            if queue.sent:
                recalled += len(queue.sent)
                queue.waiting.extendleft(reversed(queue.sent))
                queue.sent = []
                queue.due = True
        return recalled

    def isolate(self, lane: Lane) -> None:
        """The batch on its way was refused for its size: when it is recalled, its records go one by one."""
        self._lanes[lane].alone = len(self._lanes[lane].sent)

    def take_all(self) -> dict[Lane, list[Letter]]:
        """Empties the outbox: everything not acknowledged, in order."""
        left = {lane: [*queue.sent, *queue.waiting] for lane, queue in self._lanes.items()}
        self._lanes.clear()
        self.count = 0
        return {lane: letters for lane, letters in left.items() if letters}


def may_linger(event: AnyEvent) -> bool:
    """Whether an event may wait for company: a chunk after its run's first.

    Everything else goes at once, so that the time to the first token, verdicts, recalls and endings pay nothing for it.
    """
    return isinstance(event, Chunk) and event.seq > 0


def _cut(waiting: deque[Letter], *, alone: bool) -> list[Letter]:
    batch = [waiting.popleft()]
    size = batch[0].size
    while not alone and waiting and size + waiting[0].size <= BATCH_BYTES:
        letter = waiting.popleft()
        size += letter.size
        batch.append(letter)
    return batch
