"""The interface of a core, which makes a service's decisions, and the effects that it returns. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base import AnyEvent
from schemas.topics import Topic
from services.bus import Received, UnreadableRecord


class RecordPosition(NamedTuple):
    """The position of a record on the log."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Received | UnreadableRecord) -> "RecordPosition":
        return cls(record.topic, record.partition, record.offset)


@dataclass(frozen=True, slots=True)
class Write:
    """An effect: write an event to a topic.

    Attributes:
        done: Position of the record that is done once this event is acknowledged. Used only if offsets are committed.
    """

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None
    done: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class RecordDone:
    """An effect: a record is done, and no event has to be written for it."""

    position: RecordPosition


Effect = object
"""``Write``, ``RecordDone``, or an effect that the service defines and performs. Effects are performed in order."""

NOTHING: Final[Sequence[Effect]] = ()


class Core:
    """Makes the decisions of a service. A subclass overrides the methods that it needs.

    ``number`` is a partition number. Times are microseconds since the epoch on the clock of this process. ``now_us`` is
    the current time, for the events that are written. ``at_us`` is the time at which a record was appended. Every
    record of partition ``number`` that was appended before ``known_us`` has been read.
    """

    @property
    def backlog(self) -> int:
        """Return the number of records that were read and are not processed yet.

        Reading pauses while this number, plus the number of writes that wait for the producer, is at
        ``ProcessorConfig.limit``.
        """
        return 0

    @property
    def busy(self) -> bool:
        """Return whether ``step`` has work."""
        return False

    def gained(self, number: int) -> None:
        """Create the state of a partition number that this member now holds. Its recent records are read next."""

    def lost(self, number: int) -> None:
        """Drop all state of a partition number that this member no longer holds."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a record, or queue it for ``step``."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Start to decide. All records that were on the log when the partition number was gained have been read."""
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return the time of the next decision that depends on time alone; None if there is none.

        If the returned time is not after ``now_us``, the decision is due. If it is after ``now_us``, the decision is
        not due before that time. When the time comes, the processor calls this method again, and may get a later time.
        """
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Make the decisions that depend on time alone and are due by ``known_us``."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a part of the queued work that is small enough not to block the event loop."""
        return NOTHING
