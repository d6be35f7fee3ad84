"""The data directory: topics and their configurations, records, committed offsets and consumer groups.

`topics.json`, `topics/NAME/PARTITION/`, `offsets.jsonl`, `groups.json`.
A killed process loses nothing that it acknowledged: every write is passed to the operating system before the response
is sent. A machine that loses power may lose what was not synced; files are synced when they are closed, not before.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets, TopicPartition
from services.broker.groups.members import StableGroup
from services.broker.settings import BadSetting
from services.broker.storage.offset_journal import OffsetJournal
from services.broker.storage.partition_log import PartitionLog, Sink
from services.broker.storage.segment_files import SegmentFiles, recover, stored_segments
from services.broker.storage.topic_config import InvalidConfig
from services.broker.storage.topics import Topics, TopicState

logger = logging.getLogger("railbus.broker")

_FORMAT = 1


class _StoredTopic(msgspec.Struct):
    partitions: int
    config: dict[str, str]


class _TopicsFile(msgspec.Struct):
    format: int
    topics: dict[str, _StoredTopic]


class _GroupsFile(msgspec.Struct):
    format: int
    groups: dict[str, StableGroup]


class NoStorage:
    """A store that keeps nothing: topics, offsets and groups are in memory only."""

    def load(self, topics: Topics, offsets: CommittedOffsets, now_ms: int) -> None: ...

    def sink(self, topic: str, partition: int) -> Sink | None:  # noqa: ARG002
        return None

    def save_topics(self, topics: Mapping[str, TopicState]) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None: ...

    def forgotten(self, group: str, place: TopicPartition) -> None: ...

    def load_groups(self) -> dict[str, StableGroup]:
        return {}

    def save_groups(self, groups: Mapping[str, StableGroup]) -> None: ...

    def close(self) -> None: ...


class Storage:
    """Stores everything that survives a restart in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sinks: dict[TopicPartition, SegmentFiles] = {}
        self._lock = _lock(folder)
        self._journal = OffsetJournal(folder / "offsets.jsonl")

    def load(self, topics: Topics, offsets: CommittedOffsets, now_ms: int) -> None:
        """Load topics and offsets; raises `BadSetting` where the directory is not a broker's."""
        stored = self._read_topics()
        for name, entry in stored.items():
            try:
                config = topics.defaults.with_settings(entry.config)
            except InvalidConfig as error:
                raise BadSetting(f"{self._folder / 'topics.json'}: topic {name}: {error}") from None
            topic = TopicState(name, config, [])
            for index in range(entry.partitions):
                topic.partitions.append(self._load_partition(topic, index, now_ms))
            topics.adopt(topic)
        self._remove_leftovers(set(stored))
        self._journal.load(offsets)

    def sink(self, topic: str, partition: int) -> Sink | None:
        """Return the files of a new partition."""
        place = TopicPartition(topic, partition)
        sink = self._sinks[place] = SegmentFiles(self._partition_folder(topic, partition))
        return sink

    def save_topics(self, topics: Mapping[str, TopicState]) -> None:
        """Write the list of topics, all of it or nothing."""
        listed = {each.name: _StoredTopic(len(each.partitions), dict(each.config.given)) for each in topics.values()}
        self._write("topics.json", _TopicsFile(_FORMAT, listed))

    def delete_topic(self, name: str) -> None:
        """Remove a topic's records."""
        for place in [place for place in self._sinks if place.topic == name]:
            self._sinks.pop(place).close()
        shutil.rmtree(self._folder / "topics" / name, ignore_errors=True)

    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        self._journal.committed(group, place, committed)

    def forgotten(self, group: str, place: TopicPartition) -> None:
        self._journal.forgotten(group, place)

    def load_groups(self) -> dict[str, StableGroup]:
        """Return the groups that were stable. Where they cannot be read, members join anew."""
        path = self._folder / "groups.json"
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_GroupsFile)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s: cannot be read, groups begin anew: %s", path, error)
            return {}
        return stored.groups if stored.format == _FORMAT else {}

    def save_groups(self, groups: Mapping[str, StableGroup]) -> None:
        """Write the stable groups, all of them or nothing."""
        self._write("groups.json", _GroupsFile(_FORMAT, dict(groups)))

    def close(self) -> None:
        """Sync and close every file, and unlock the directory."""
        for sink in self._sinks.values():
            sink.close()
        self._journal.close()
        os.close(self._lock)

    def _write(self, name: str, content: _TopicsFile | _GroupsFile) -> None:
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        fresh.replace(self._folder / name)

    def _read_topics(self) -> dict[str, _StoredTopic]:
        path = self._folder / "topics.json"
        if not path.exists():
            return {}
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_TopicsFile)
        except msgspec.DecodeError as error:
            raise BadSetting(f"{path}: cannot be read ({error}); repair it or use another --data-dir") from None
        if stored.format != _FORMAT:
            raise BadSetting(f"{path}: written by another version; use another --data-dir")
        return stored.topics

    def _load_partition(self, topic: TopicState, index: int, now_ms: int) -> PartitionLog:
        folder = self._partition_folder(topic.name, index)
        segments = stored_segments(folder)
        base = segments[0][0] if segments else 0
        log = PartitionLog(topic.config, base=base, now_ms=now_ms)
        for first, path in segments:
            if first != log.end:
                logger.warning("%s: begins at %d where the log ends at %d, removed", path, first, log.end)
                path.unlink()
                continue
            log.begin_segment(now_ms)
            for batch, header in recover(path, first):
                log.restore(batch, header, now_ms)
        sink = self._sinks[TopicPartition(topic.name, index)] = SegmentFiles(folder, log.newest_segment)
        log.attach_sink(sink)
        return log

    def _remove_leftovers(self, known: set[str]) -> None:
        folder = self._folder / "topics"
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in known:  # deleted, but the process ended before its files were removed
                shutil.rmtree(path, ignore_errors=True)

    def _partition_folder(self, topic: str, partition: int) -> Path:
        return self._folder / "topics" / topic / str(partition)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadSetting(f"--data-dir {folder}: cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise BadSetting(f"--data-dir {folder}: another broker is using it; stop it or name another") from None
    return lock
