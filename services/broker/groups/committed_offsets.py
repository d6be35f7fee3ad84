"""The committed offsets of consumer groups."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

MAX_METADATA_BYTES = 4096  # Kafka's offset.metadata.max.bytes


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str


class Journal(Protocol):
    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None: ...

    def forgotten(self, group: str, place: TopicPartition) -> None: ...


class CommittedOffsets:
    def __init__(self, journal: Journal | None = None) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._journal = journal

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def topics(self) -> set[str]:
        return {place.topic for stored in self._groups.values() for place in stored}

    def of(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        return self._groups.get(group, {})

    def commit(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        """Commit an offset and write it to the journal.

        Raises:
            OSError: The journal cannot be written.
        """
        if self._journal is not None:
            self._journal.committed(group, place, committed)
        self.adopt(group, place, committed)

    def adopt(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        """Set a committed offset in memory only, without writing to the journal."""
        self._groups.setdefault(group, {})[place] = committed

    def forget(self, group: str, place: TopicPartition) -> None:
        """Delete a committed offset and write the deletion to the journal.

        Raises:
            OSError: The journal cannot be written.
        """
        if place in self.of(group) and self._journal is not None:
            self._journal.forgotten(group, place)
        self.drop(group, place)

    def drop(self, group: str, place: TopicPartition) -> None:
        """Delete a committed offset in memory only, without writing to the journal."""
        kept = self._groups.get(group, {})
        kept.pop(place, None)
        if not kept:
            self._groups.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        for group in list(self._groups):
            for place in [place for place in self._groups[group] if place.topic == topic]:
                self.forget(group, place)
