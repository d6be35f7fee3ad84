"""What a core is told, and what it answers with. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base import AnyEvent
from schemas.topics import Topic
from services.bus import Received, Unread


class Place(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Received | Unread) -> "Place":
        """Where this one stands."""
        return cls(record.topic, record.partition, record.offset)


@dataclass(frozen=True, slots=True)
class Write:
    """Put an event on a topic.

    Attributes:
        topic: Where.
        event: What.
        traceparent: W3C Trace Context; None for none.
        done: The record whose work is over once this is acknowledged, where offsets are committed.
    """

    topic: Topic
    event: AnyEvent
    traceparent: str | None = None
    done: Place | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The work on a record is over, and there is nothing to write."""

    place: Place


Effect = object
"""``Write``, ``Done``, or what the service itself understands: it is told of those, in order."""

NOTHING: Final[Sequence[Effect]] = ()


class Core:
    """What a service decides. It overrides what it needs.

    Times are microseconds since the epoch on the clock of this process. ``now_us`` is for what is written;
    ``at_us`` is when a record was appended, and ``known_us`` the time up to which all of a number's records were read.
    """

    @property
    def backlog(self) -> int:
        """How many records were taken in and not dealt with; it is what holds the reader back."""
        return 0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return False

    def gained(self, number: int) -> None:
        """Hold a partition number; its recent past follows."""

    def lost(self, number: int) -> None:
        """Forget all about a partition number."""

    def read(self, record: Received | Unread, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Take a record."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Everything was read that stood on the log when the number was gained: decide from now on."""
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """When the clock alone brings something about; exact where it is not after ``now_us``."""
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Decide what the clock alone brings about up to ``known_us``."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Do a slice of the work that waits, short enough that the event loop does not miss it."""
        return NOTHING
