"""Committed offsets of consumer groups."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

MAX_METADATA_BYTES = 4096  # Kafka's offset.metadata.max.bytes


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Committed(NamedTuple):
    """What a group committed for a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class Journal(Protocol):
    """Where commits are kept besides memory."""

    def committed(self, group: str, place: Place, committed: Committed) -> None:
        """A group committed."""

    def forgotten(self, group: str, place: Place) -> None:
        """A group's commit is void, because the topic is gone."""


class Offsets:
    """All groups' offsets."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._groups: dict[str, dict[Place, Committed]] = {}
        self._journal = journal

    def groups(self) -> Iterator[str]:
        """Groups that have committed something."""
        return iter(self._groups)

    def of(self, group: str) -> dict[Place, Committed]:
        """Everything a group has committed."""
        return self._groups.get(group, {})

    def commit(self, group: str, place: Place, committed: Committed) -> None:
        """A group commits; raises `OSError` when it could not be kept."""
        if self._journal is not None:
            self._journal.committed(group, place, committed)
        self.adopt(group, place, committed)

    def adopt(self, group: str, place: Place, committed: Committed) -> None:
        """Take back a commit that was kept on disk."""
        self._groups.setdefault(group, {})[place] = committed

    def forget(self, group: str, place: Place) -> None:
        """Drop one commit; raises `OSError` when that could not be kept."""
        if place in self.of(group) and self._journal is not None:
            self._journal.forgotten(group, place)
        self.drop(group, place)

    def drop(self, group: str, place: Place) -> None:
        """As the disk has it, a commit is void."""
        kept = self._groups.get(group, {})
        kept.pop(place, None)
        if not kept:
            self._groups.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Drop every group's commits on a topic that is gone."""
        for group in list(self._groups):
            for place in [place for place in self._groups[group] if place.topic == topic]:
                self.forget(group, place)
