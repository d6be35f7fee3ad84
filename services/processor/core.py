"""The base class of cores (the objects that make a service's decisions), and the effects that a core returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base import AnyEvent
from schemas.topics import Topic
from services.bus import Received, UnreadableRecord


class RecordPosition(NamedTuple):
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
        done: Position of the record whose processing ends with this event. The record's offset may be committed when
            the broker has acknowledged the event, or when the event cannot be written at all.
    """

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None
    done: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class RecordDone:
    """An effect: a record is processed, so its offset may be committed."""

    position: RecordPosition


Effect = object
"""``Write``, ``RecordDone``, or an effect that the service defines and performs. Effects are performed in order."""

NOTHING: Final[Sequence[Effect]] = ()


class Core:
    """Makes the decisions of a service, without I/O. A subclass overrides the methods that it needs.

    The methods return effects, which the processor performs. A parameter whose name ends in ``_us`` is a time in
    microseconds since the epoch. Parameters with these names mean the same in all methods:

    * ``number``: a partition number.
    * ``now_us``: the current time.
    * ``at_us``: the time at which the record was appended to the log.
    * ``known_us``: the time up to which the log was read. All records appended before it were passed to ``read``.
    """

    @property
    def backlog(self) -> int:
        """The number of records that were read and are not processed yet."""
        return 0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has work."""
        return False

    def gained(self, number: int) -> None:
        """Create the state of partition ``number``, which this member has gained."""

    def lost(self, number: int) -> None:
        """Drop the state of partition ``number``, which this member no longer holds."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a record, or queue it for ``step``."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Start to make decisions for a gained partition, whose records have now been read to the end.

        This method is called only if the processor's ``rewind_ms`` is set.
        """
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return when to call ``tick``, in microseconds since the epoch; None if no call is needed."""
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Make the decisions that are due at ``known_us``. All records appended before ``known_us`` have been read."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a small part of the queued work, without blocking the event loop for long."""
        return NOTHING
