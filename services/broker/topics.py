"""The topics: their names, configurations and partitions. Decisions only; the disk is behind `Keeper`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from services.broker.codes import Code
from services.broker.log import PartitionLog, Sink
from services.broker.topic_config import InvalidConfig, TopicConfig

MAX_PARTITIONS = 4096  # of all topics together
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicError(Exception):
    """An operation on a topic is refused; `code` and the message are what the client is told."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Keeper(Protocol):
    """What keeps topics besides memory. `save_topics` may raise `OSError`; then nothing has changed."""

    def sink(self, topic: str, partition: int) -> Sink | None:
        """Where a new partition's batches go."""

    def save_topics(self, topics: Mapping[str, "Topic"]) -> None:
        """The list of topics, or a configuration, has changed."""

    def delete_topic(self, name: str) -> None:
        """A topic and its records are gone."""


class Topic:
    """A topic: its configuration and its partitions' logs."""

    def __init__(self, name: str, config: TopicConfig, partitions: list[PartitionLog]) -> None:
        self.name = name
        self.config = config
        self.partitions = partitions

    def partition(self, index: int) -> PartitionLog | None:
        """The partition of this number, or None."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def check_name(name: str) -> None:
    """Raise `TopicError` for a name that no topic can have."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise TopicError(
            Code.INVALID_TOPIC_EXCEPTION,
            f"Topic name {name!r} is illegal: 1 to 249 letters, digits, '.', '_' and '-', and not '.' or '..'.",
        )


class Topics:
    """All topics."""

    def __init__(self, defaults: TopicConfig, keeper: Keeper) -> None:
        self.defaults = defaults
        self._keeper = keeper
        self._topics: dict[str, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def get(self, name: str) -> Topic | None:
        """The topic of this name, or None."""
        return self._topics.get(name)

    def adopt(self, topic: Topic) -> None:
        """Take back a topic that was kept on disk."""
        self._topics[topic.name] = topic

    def existing(self, name: str) -> Topic:
        """The topic of this name; raises `TopicError`."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicError(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic

    def create(self, name: str, partitions: int, settings: Mapping[str, str | None], *, now_ms: int) -> Topic:
        """A new topic; raises `TopicError`."""
        config = self.check_new(name, partitions, settings)
        topic = Topic(name, config, self._new_partitions(name, config, range(partitions), now_ms))
        self._topics[name] = topic
        try:
            self._keeper.save_topics(self._topics)
        except OSError:
            del self._topics[name]
            raise
        return topic

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str | None]) -> TopicConfig:
        """Whether this topic could be created, and its configuration; raises `TopicError`."""
        config = self.check_free(name, settings)
        if partitions < 1:
            raise TopicError(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        self._check_room(partitions)
        return config

    def check_free(self, name: str, settings: Mapping[str, str | None]) -> TopicConfig:
        """What Kafka looks at before any number: the name, whether it is taken, the configuration; as `check_new`."""
        check_name(name)
        if name in self._topics:
            raise TopicError(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        return self._configured(settings)

    def configure(self, name: str, settings: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Replace a topic's configuration: what is not named goes back to its default; raises `TopicError`."""
        config = self._configured(settings)
        topic = self.existing(name)
        if validate_only:
            return
        before, topic.config = topic.config, config
        try:
            self._keeper.save_topics(self._topics)
        except OSError:
            topic.config = before
            raise
        for log in topic.partitions:
            log.config = config

    def grow(self, name: str, partitions: int, *, now_ms: int, validate_only: bool) -> None:
        """More partitions for a topic; raises `TopicError`."""
        topic = self.existing(name)
        have = len(topic.partitions)
        if partitions <= have:
            raise TopicError(
                Code.INVALID_PARTITIONS,
                f"The topic {name} currently has {have} partition(s); {partitions} would not be an increase.",
            )
        self._check_room(partitions - have)
        if validate_only:
            return
        topic.partitions += self._new_partitions(name, topic.config, range(have, partitions), now_ms)
        try:
            self._keeper.save_topics(self._topics)
        except OSError:
            del topic.partitions[have:]
            raise

    def delete(self, name: str) -> Topic:
        """Remove a topic and its records; raises `TopicError`."""
        topic = self.existing(name)
        rest = {each.name: each for each in self if each is not topic}
        self._keeper.save_topics(rest)
        self._topics = rest
        self._keeper.delete_topic(name)
        return topic

    def _configured(self, settings: Mapping[str, str | None]) -> TopicConfig:
        try:
            return replace(self.defaults, given={}).with_settings(settings)
        except InvalidConfig as error:
            raise TopicError(Code.INVALID_CONFIG, str(error)) from None

    def _check_room(self, more: int) -> None:
        if sum(len(topic.partitions) for topic in self) + more > MAX_PARTITIONS:
            raise TopicError(
                Code.POLICY_VIOLATION, f"The embedded broker keeps at most {MAX_PARTITIONS} partitions in all."
            )

    def _new_partitions(self, name: str, config: TopicConfig, indices: range, now_ms: int) -> list[PartitionLog]:
        return [PartitionLog(config, now_ms=now_ms, sink=self._keeper.sink(name, index)) for index in indices]
