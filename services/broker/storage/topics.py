"""The topics of a broker: names, configurations and partitions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from services.broker.protocol.error_codes import ErrorCode
from services.broker.storage.partition_log import PartitionLog
from services.broker.storage.segment import SegmentStore
from services.broker.storage.topic_config import InvalidConfig, TopicConfig

MAX_PARTITIONS = 4096  # of all topics together
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicError(Exception):
    """An operation on a topic is rejected. The client gets ``code`` and the message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class TopicStore(Protocol):
    def segments(self, topic: str, partition: int) -> SegmentStore | None: ...

    # If this raises OSError, the stored topics are unchanged.
    def save_topics(self, topics: Mapping[str, "TopicState"]) -> None: ...

    def delete_topic(self, name: str) -> None: ...


class TopicState:
    def __init__(self, name: str, config: TopicConfig, partitions: list[PartitionLog]) -> None:
        self.name = name
        self.config = config
        self.partitions = partitions

    def partition(self, index: int) -> PartitionLog | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def check_name(name: str) -> None:
    """Check a topic name.

    Raises:
        TopicError: The name is not valid.
    """
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name {name!r} is illegal: 1 to 249 letters, digits, '.', '_' and '-', and not '.' or '..'.",
        )


class Topics:
    def __init__(self, defaults: TopicConfig, store: TopicStore) -> None:
        self.defaults = defaults
        self._store = store
        self._topics: dict[str, TopicState] = {}

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self._topics.values())

    def get(self, name: str) -> TopicState | None:
        return self._topics.get(name)

    def adopt(self, topic: TopicState) -> None:
        self._topics[topic.name] = topic

    def existing(self, name: str) -> TopicState:
        """Return the topic with this name.

        Raises:
            TopicError: There is no such topic.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic

    def create(self, name: str, partitions: int, settings: Mapping[str, str | None], *, now_ms: int) -> TopicState:
        """Create a topic and store it.

        Raises:
            TopicError: The topic cannot be created.
        """
        config = self.check_new(name, partitions, settings)
        topic = TopicState(name, config, self._new_partitions(name, config, range(partitions), now_ms))
        self._topics[name] = topic
        try:
            self._store.save_topics(self._topics)
        except OSError:
            del self._topics[name]
            raise
        return topic

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str | None]) -> TopicConfig:
        """Check that a topic can be created, and return the configuration that it would have.

        Raises:
            TopicError: The topic cannot be created.
        """
        config = self.check_free(name, settings)
        if partitions < 1:
            raise TopicError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        self._check_room(partitions)
        return config

    def check_free(self, name: str, settings: Mapping[str, str | None]) -> TopicConfig:
        """Check the name and the settings of a new topic, and return the configuration that it would have.

        Raises:
            TopicError: The name is not valid, the topic exists, or the configuration is not valid.
        """
        check_name(name)
        if name in self._topics:
            raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        return self._configured(settings)

    def configure(self, name: str, settings: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Replace the configuration of a topic. Entries missing from ``settings`` get their defaults.

        Raises:
            TopicError: There is no such topic, or an entry is rejected.
        """
        config = self._configured(settings)
        topic = self.existing(name)
        if validate_only:
            return
        before, topic.config = topic.config, config
        try:
            self._store.save_topics(self._topics)
        except OSError:
            topic.config = before
            raise
        for log in topic.partitions:
            log.config = config

    def grow(self, name: str, partitions: int, *, now_ms: int, validate_only: bool) -> None:
        """Increase the number of partitions of a topic to `partitions`.

        Raises:
            TopicError: There is no such topic, or the number is too small or too large.
        """
        topic = self.existing(name)
        have = len(topic.partitions)
        if partitions <= have:
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {name} currently has {have} partition(s); {partitions} would not be an increase.",
            )
        self._check_room(partitions - have)
        if validate_only:
            return
        topic.partitions += self._new_partitions(name, topic.config, range(have, partitions), now_ms)
        try:
            self._store.save_topics(self._topics)
        except OSError:
            del topic.partitions[have:]
            raise

    def delete(self, name: str) -> TopicState:
        """Delete a topic and its records.

        Raises:
            TopicError: There is no such topic.
        """
        topic = self.existing(name)
        rest = {each.name: each for each in self if each is not topic}
        self._store.save_topics(rest)
        self._topics = rest
        self._store.delete_topic(name)
        return topic

    def _configured(self, settings: Mapping[str, str | None]) -> TopicConfig:
        try:
            return replace(self.defaults, given={}).with_settings(settings)
        except InvalidConfig as error:
            raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _check_room(self, more: int) -> None:
        if sum(len(topic.partitions) for topic in self) + more > MAX_PARTITIONS:
            raise TopicError(
                ErrorCode.POLICY_VIOLATION, f"The embedded broker keeps at most {MAX_PARTITIONS} partitions in all."
            )

    def _new_partitions(self, name: str, config: TopicConfig, indices: range, now_ms: int) -> list[PartitionLog]:
        return [PartitionLog(config, now_ms=now_ms, store=self._store.segments(name, index)) for index in indices]
