"""The interface of a core and the effects that it returns. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base import AnyEvent
from schemas.topics import Topic
from services.bus import Received, UnreadableRecord


class RecordPosition(NamedTuple):
    """Where a record is on the log."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Received | UnreadableRecord) -> "RecordPosition":
        return cls(record.topic, record.partition, record.offset)


@dataclass(frozen=True, slots=True)
class Write:
    """Put an event on a topic.

    Attributes:
        done: The record whose work is over once this event is acknowledged; used if offsets are committed.
    """

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None
    done: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class RecordDone:
    """An effect: a record is done, and nothing has to be written for it."""

    position: RecordPosition


Effect = object
"""``Write``, ``RecordDone``, or an effect of the service's own, which it performs in order."""

NOTHING: Final[Sequence[Effect]] = ()


class Core:
    """Decides for a service, which overrides the methods that it needs.

    Times are microseconds since the epoch on the clock of this process. ``now_us`` is for what is written;
    ``at_us`` is when a record was appended, and ``known_us`` the time up to which all of a number's records were read.
    """

    @property
    def backlog(self) -> int:
        """Return how many records were read and are not processed; reading pauses at a limit."""
        return 0

    @property
    def busy(self) -> bool:
        """Return whether ``step`` has work."""
        return False

    def gained(self, number: int) -> None:
        """Begin to hold a partition number; its recent past follows."""

    def lost(self, number: int) -> None:
        """Drop all state of a partition number."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Take a record."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Decide from now on, because everything that was on the log when the number was gained was read."""
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return the time of the next decision by time alone; exact unless it is after ``now_us``."""
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Decide what is due by time alone up to ``known_us``."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Do a slice of the waiting work, short enough not to block the event loop."""
        return NOTHING
