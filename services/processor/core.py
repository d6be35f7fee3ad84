"""The interface of a core, which makes a service's decisions, and the effects that a core returns."""

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
        done: Position of the record whose offset may be committed once the broker has acknowledged this event.
    """

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None
    done: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class RecordDone:
    """An effect: the offset of a record may be committed."""

    position: RecordPosition


Effect = object
"""``Write``, ``RecordDone``, or an effect that the service defines and performs. Effects are performed in order."""

NOTHING: Final[Sequence[Effect]] = ()


class Core:
    """Makes the decisions of a service, without I/O. A subclass overrides the methods that it needs.

    Parameters of the methods have these meanings; times are in microseconds since the epoch:

    * ``number``: a partition number.
    * ``now_us``: the current time.
    * ``at_us``: when the record was appended to the log.
    * ``known_us``: all records that were appended before this time have been read.
    """

    @property
    def backlog(self) -> int:
        """The number of records that were read and are not processed yet. Reading pauses if it is too large."""
        return 0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has work."""
        return False

    def gained(self, number: int) -> None:
        """Create the state of a partition number that this member has gained. Its recent records are read next."""

    def lost(self, number: int) -> None:
        """Drop the state of a partition number that this member no longer holds."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a record, or queue it for ``step``."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Start to make decisions. All records have been read that were on the log at the call of ``gained``."""
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return when to call ``tick`` next, in microseconds since the epoch; None if no call is needed.

        At this time, the processor calls this method again, and calls ``tick`` if the result is no later than
        ``now_us``.
        """
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Make the decisions that are due by ``known_us``."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a small part of the queued work, without blocking the event loop for long."""
        return NOTHING
