"""The offsets that consumer groups committed."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

MAX_METADATA_BYTES = 4096  # Kafka's offset.metadata.max.bytes


class TopicPartition(NamedTuple):
    """A partition, named by its topic and its partition number."""

    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The offset that a group committed for a partition, with the leader epoch and the metadata of the commit."""

    offset: int
    leader_epoch: int
    metadata: str


class Journal(Protocol):
    """Stores committed offsets on disk."""

    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None: ...

    def forgotten(self, group: str, place: TopicPartition) -> None:
        """Store that a committed offset was deleted."""


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._journal = journal

    def groups(self) -> Iterator[str]:
        """Iterate over the ids of the groups that have committed offsets."""
        return iter(self._groups)

    def of(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        return self._groups.get(group, {})

    def commit(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        """Commit an offset. Raises `OSError` if it cannot be stored."""
        if self._journal is not None:
            self._journal.committed(group, place, committed)
        self.adopt(group, place, committed)

    def adopt(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        """Set a committed offset in memory only."""
        self._groups.setdefault(group, {})[place] = committed

    def forget(self, group: str, place: TopicPartition) -> None:
        """Delete a committed offset. Raises `OSError` if the deletion cannot be stored."""
        if place in self.of(group) and self._journal is not None:
            self._journal.forgotten(group, place)
        self.drop(group, place)

    def drop(self, group: str, place: TopicPartition) -> None:
        """Delete a committed offset in memory only."""
        kept = self._groups.get(group, {})
        kept.pop(place, None)
        if not kept:
            self._groups.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Delete the committed offsets of all groups for a deleted topic."""
        for group in list(self._groups):
            for place in [place for place in self._groups[group] if place.topic == topic]:
                self.forget(group, place)
