from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from schemas.base import AnyEvent
from schemas.errors import UnreadableEvent
from schemas.registry import RoleName, read_kinds
from schemas.topics import Topic

UNKNOWN_OFFSET = -1
"""Stands for an offset that nobody knows. A retry has found that the event is already on the log, but the broker no
longer knows at which offset."""


class Position(NamedTuple):
    """The partition number of an event in its topic, and its offset, which may be ``UNKNOWN_OFFSET``."""

    partition: int
    offset: int


class AtTime(NamedTuple):
    """A start position: the first record appended at or after this time.

    ``time_ms`` is in milliseconds since the epoch, by the broker's clock.
    """

    time_ms: int


class Received(NamedTuple):  # a tuple, because one is created for each record
    """An event and its position.

    Attributes:
        timestamp_ms: When the broker appended the record, in milliseconds since the epoch, by the broker's clock.
            Within a partition it does not decrease. Only a record that was written before its topic used
            ``LogAppendTime`` has its writer's time instead.
        traceparent: W3C Trace Context of the record; None when it has none or an invalid one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    event: AnyEvent
    traceparent: str | None


class StoredRecord(NamedTuple):
    """A record as it is on the log, not decoded.

    Attributes:
        timestamp_ms: As in ``Received``.
        headers: A value may be None. If the broker's batch cannot be unpacked, key and value are None, and the only
            header is ``BROKEN_BATCH`` with the reason.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


BROKEN_BATCH = "railbus-broken-batch"


@final
@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that cannot be decoded, as it is on the log; the bus has counted and logged it.

    Attributes:
        timestamp_ms: As in ``Received``; 0 if a whole batch cannot be unpacked.
        headers: A value may be None.
        error: Why it could not be decoded; the message names the field.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    error: UnreadableEvent


RecordHandler = Callable[[Sequence[Received | UnreadableRecord]], None]
"""Receives records. It must return without waiting, because the read loop calls it. An exception ends reading."""

StoredRecordHandler = Callable[[Sequence[StoredRecord]], None]
"""Like ``RecordHandler``, for records that are not decoded."""

RecordFilter = Callable[[str, bytes | None], bool]
"""Returns whether to decode a record of this kind and key. It is called for known and unknown kinds."""

Partition = tuple[str, int]
"""A topic's name and a partition number."""

TopicPartitions = frozenset[Partition]


def filter_for_role(role: RoleName, *topics: Topic) -> RecordFilter:
    """Return a filter for the kinds of events that the role reads on these topics, according to the registry."""
    kinds = read_kinds(role, *topics)
    return lambda kind, _key: kind in kinds
