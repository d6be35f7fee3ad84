"""What the bus hands over, and what it is handed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.base import AnyEvent
from schemas.errors import UnreadableEvent
from schemas.registry import RoleName, read_kinds
from schemas.topics import Topic

UNKNOWN_OFFSET = -1
"""Offset of an event that a retry found to be on the log already, when the broker no longer says where."""


class Position(NamedTuple):
    """Where an event stands in its topic; offset ``UNKNOWN_OFFSET`` in the rare case above."""

    partition: int
    offset: int


class AtTime(NamedTuple):
    """The first record appended at or after this moment: milliseconds since the epoch, by the broker's clock."""

    time_ms: int


class Received(NamedTuple):
    """An event and where it stood. A tuple, because one is made for each record.

    Attributes:
        topic: Where it was read.
        partition: Where it was read.
        offset: Where it was read.
        timestamp_ms: When the broker appended the record, milliseconds since the epoch by the broker's clock. Within a
            partition it does not go back. Only a record from before its topic was altered has its writer's time.
        event: What it says.
        traceparent: W3C Trace Context of the record; None when it has none or an invalid one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    event: AnyEvent
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Unread:
    """A record that gives no event; the bus has counted and logged it.

    Attributes:
        topic: Where it was read.
        partition: Where it was read.
        offset: Where it was read.
        timestamp_ms: As in ``Received``; 0 where a whole batch cannot be unpacked.
        key: As it was.
        value: As it was.
        headers: As they were; a value may be None.
        error: Why it could not be read; the message names the field.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    error: UnreadableEvent


Handler = Callable[[Sequence[Received | Unread]], None]
"""Looks, decides, starts tasks or enqueues, and returns; the loop never awaits the work. An error ends reading."""

Wants = Callable[[str, bytes | None], bool]
"""Whether a record of this kind and key is to be decoded at all. Asked for known and unknown kinds alike."""

TopicPartitions = frozenset[tuple[str, int]]


def wants_of(role: RoleName, *topics: Topic) -> Wants:
    """Let through the kinds that a role reads on these topics, by the registry."""
    kinds = read_kinds(role, *topics)
    return lambda kind, _key: kind in kinds
