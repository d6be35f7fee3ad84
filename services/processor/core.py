"""The base class of the objects that make a service's decisions, and the effects that their methods return."""

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
        done: Position of a record that counts as processed when the broker has acknowledged the event. Its offset may
            then be committed.
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

    Methods return effects, which the processor performs. The parameters of the methods have these meanings; times are
    in microseconds since the epoch:

    * ``number``: a partition number.
    * ``now_us``: the current time.
    * ``at_us``: the time at which the record was appended to the log.
    * ``known_us``: a time. ``read`` has got every record of this partition number that was appended before it.
    """

    @property
    def backlog(self) -> int:
        """The number of records that ``read`` has got and that are not processed yet.

        If this number reaches ``ProcessorConfig.limit``, reading pauses.
        """
        return 0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has work."""
        return False

    def gained(self, number: int) -> None:
        """Create the state of a partition number that this member has gained."""

    def lost(self, number: int) -> None:
        """Drop the state of a partition number that this member no longer holds."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a record, or queue it for ``step``."""
        return NOTHING

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Start to make decisions: ``read`` has got every record that was on the log when ``gained`` was called.

        This is called only if ``ProcessorConfig.rewind_ms`` is set.
        """
        return NOTHING

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return the time at which ``tick`` must be called, in microseconds since the epoch; None if no call is needed.

        At this time, the processor calls ``alarm_us`` again. If the result is not in the future, the processor reads
        the partitions to their ends and calls ``tick``.
        """
        return None

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Make the decisions that are due at the time ``known_us``."""
        return NOTHING

    def step(self, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Process a small part of the queued work, without blocking the event loop for long."""
        return NOTHING
