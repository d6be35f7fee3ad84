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
    """The partition number and the offset of an event in its topic.

    The offset is ``UNKNOWN_OFFSET`` if the producer sent the event again, and the broker no longer knew the offset of
    the first copy.
    """

    partition: int
    offset: int


class AtTime(NamedTuple):
    """A start position: the first record appended at or after ``time_ms`` (milliseconds since the epoch)."""

    time_ms: int


class Received(NamedTuple):  # a tuple, because one is created for each record
    """An event that was read, with its position.

    Attributes:
        timestamp_ms: When the broker appended the record, in milliseconds since the epoch, by the broker's clock.
        traceparent: W3C Trace Context of the record; None if the record has none or an invalid one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    event: AnyEvent
    traceparent: str | None


class StoredRecord(NamedTuple):
    """A record as it is on the log, not decoded.

    A batch that cannot be unpacked is represented by a single ``StoredRecord`` without key and value. Its only header
    is ``BROKEN_BATCH``.

    Attributes:
        timestamp_ms: When the broker appended the record, in milliseconds since the epoch, by the broker's clock.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def is_broken_batch(self) -> bool:
        """Whether the record represents a batch, or the rest of a batch, that cannot be unpacked."""
        return self.key is None and self.value is None and [name for name, _ in self.headers] == [BROKEN_BATCH]


BROKEN_BATCH = "railbus-broken-batch"


@final
@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """The unchanged bytes of a record that cannot be decoded. The bus has already counted and logged the record.

    A batch that cannot be unpacked is represented by a single ``UnreadableRecord`` without key and value.

    Attributes:
        timestamp_ms: When the broker appended the record, in milliseconds since the epoch, by the broker's clock.
        error: Why the record cannot be decoded.
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
    """Return a filter for the kinds of events that the role reads from these topics (see ``schemas.registry``)."""
    kinds = read_kinds(role, *topics)
    return lambda kind, _key: kind in kinds
