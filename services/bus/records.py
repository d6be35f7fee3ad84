"""Types that the bus gives to its callers and takes from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from schemas.base import AnyEvent
from schemas.errors import UnreadableEvent
from schemas.registry import RoleName, read_kinds
from schemas.topics import Topic

UNKNOWN_OFFSET = -1
"""Stands for the offset of an event that a retry found on the log, if the broker no longer knows its offset."""


class Position(NamedTuple):
    """Where an event is in its topic; see ``UNKNOWN_OFFSET``."""

    partition: int
    offset: int


class AtTime(NamedTuple):
    """The first record appended at or after this time: milliseconds since the epoch, by the broker's clock."""

    time_ms: int


class Received(NamedTuple):
    """An event and its position. A tuple, because one is made for each record.

    Attributes:
        timestamp_ms: When the broker appended the record, milliseconds since the epoch by the broker's clock. Within a
            partition it does not decrease. Only a record from before its topic was altered has its writer's time.
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
"""Must return without waiting: the loop never awaits the work on a record. An error ends reading."""

StoredRecordHandler = Callable[[Sequence[StoredRecord]], None]
"""As ``RecordHandler``, for records that are not decoded."""

RecordFilter = Callable[[str, bytes | None], bool]
"""Whether to decode a record of this kind and key. Called for known and unknown kinds alike."""

Partition = tuple[str, int]
"""A topic's name and a partition number."""

TopicPartitions = frozenset[Partition]


def filter_for_role(role: RoleName, *topics: Topic) -> RecordFilter:
    """Let through the kinds that a role reads on these topics, by the registry."""
    kinds = read_kinds(role, *topics)
    return lambda kind, _key: kind in kinds
