"""The data directory: topics and their settings, records, and of groups what they committed and who is in them.

`topics.json`, `topics/NAME/PARTITION/`, `offsets.jsonl`, `groups.json`.
A killed process loses nothing that it acknowledged: every write is with the operating system before the answer goes
out. A machine that loses power may lose what was not synced; files are synced when they are closed, not before.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.broker.log import PartitionLog, Sink
from services.broker.members import StableGroup
from services.broker.offset_journal import OffsetJournal
from services.broker.offsets import Committed, Offsets, Place
from services.broker.segment_files import SegmentFiles, kept_segments, recover
from services.broker.settings import BadSetting
from services.broker.topic_config import InvalidConfig
from services.broker.topics import Topic, Topics

logger = logging.getLogger("railbus.broker")

_FORMAT = 1


class _KeptTopic(msgspec.Struct):
    partitions: int
    config: dict[str, str]


class _TopicsFile(msgspec.Struct):
    format: int
    topics: dict[str, _KeptTopic]


class _GroupsFile(msgspec.Struct):
    format: int
    groups: dict[str, StableGroup]


class NoStorage:
    """Keeps nothing."""

    def load(self, topics: Topics, offsets: Offsets, now_ms: int) -> None:
        """There is nothing to load."""

    def sink(self, topic: str, partition: int) -> Sink | None:  # noqa: ARG002
        """Batches live in memory only."""
        return None

    def save_topics(self, topics: Mapping[str, Topic]) -> None:
        """Topics live in memory only."""

    def delete_topic(self, name: str) -> None:
        """There is nothing to delete."""

    def committed(self, group: str, place: Place, committed: Committed) -> None:
        """Offsets live in memory only."""

    def forgotten(self, group: str, place: Place) -> None:
        """Offsets live in memory only."""

    def load_groups(self) -> dict[str, StableGroup]:
        """There is nothing to load."""
        return {}

    def save_groups(self, groups: Mapping[str, StableGroup]) -> None:
        """Groups live in memory only."""

    def close(self) -> None:
        """There is nothing to close."""


class Storage:
    """Keeps everything that must survive a restart in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sinks: dict[Place, SegmentFiles] = {}
        self._lock = _lock(folder)
        self._journal = OffsetJournal(folder / "offsets.jsonl")

    def load(self, topics: Topics, offsets: Offsets, now_ms: int) -> None:
        """Give back what was kept; raises `BadSetting` where the directory is not one of ours."""
        kept = self._read_topics()
        for name, entry in kept.items():
            try:
                config = topics.defaults.with_settings(entry.config)
            except InvalidConfig as error:
                raise BadSetting(f"{self._folder / 'topics.json'}: topic {name}: {error}") from None
            topic = Topic(name, config, [])
            for index in range(entry.partitions):
                topic.partitions.append(self._load_partition(topic, index, now_ms))
            topics.adopt(topic)
        self._remove_leftovers(set(kept))
        self._journal.load(offsets)

    def sink(self, topic: str, partition: int) -> Sink | None:
        """Where a new partition's batches go."""
        place = Place(topic, partition)
        sink = self._sinks[place] = SegmentFiles(self._partition_folder(topic, partition))
        return sink

    def save_topics(self, topics: Mapping[str, Topic]) -> None:
        """Write the list of topics anew, all of it or nothing."""
        listed = {each.name: _KeptTopic(len(each.partitions), dict(each.config.given)) for each in topics.values()}
        self._write("topics.json", _TopicsFile(_FORMAT, listed))

    def delete_topic(self, name: str) -> None:
        """Remove a topic's records."""
        for place in [place for place in self._sinks if place.topic == name]:
            self._sinks.pop(place).close()
        shutil.rmtree(self._folder / "topics" / name, ignore_errors=True)

    def committed(self, group: str, place: Place, committed: Committed) -> None:
        """Keep a commit."""
        self._journal.committed(group, place, committed)

    def forgotten(self, group: str, place: Place) -> None:
        """A commit is void."""
        self._journal.forgotten(group, place)

    def load_groups(self) -> dict[str, StableGroup]:
        """The groups that were stable. What cannot be read is left out: its members join anew."""
        path = self._folder / "groups.json"
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_GroupsFile)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s: cannot be read, groups begin anew: %s", path, error)
            return {}
        return kept.groups if kept.format == _FORMAT else {}

    def save_groups(self, groups: Mapping[str, StableGroup]) -> None:
        """Write the stable groups anew, all of them or nothing."""
        self._write("groups.json", _GroupsFile(_FORMAT, dict(groups)))

    def close(self) -> None:
        """Sync and close every file, and let another broker have the directory."""
        for sink in self._sinks.values():
            sink.close()
        self._journal.close()
        os.close(self._lock)

    def _write(self, name: str, content: _TopicsFile | _GroupsFile) -> None:
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        fresh.replace(self._folder / name)

    def _read_topics(self) -> dict[str, _KeptTopic]:
        path = self._folder / "topics.json"
        if not path.exists():
            return {}
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_TopicsFile)
        except msgspec.DecodeError as error:
            raise BadSetting(f"{path}: cannot be read ({error}); repair it or use another --data-dir") from None
        if kept.format != _FORMAT:
            raise BadSetting(f"{path}: written by another version; use another --data-dir")
        return kept.topics

    def _load_partition(self, topic: Topic, index: int, now_ms: int) -> PartitionLog:
        folder = self._partition_folder(topic.name, index)
        segments = kept_segments(folder)
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
        sink = self._sinks[Place(topic.name, index)] = SegmentFiles(folder, log.newest_segment)
        log.keep_in(sink)
        return log

    def _remove_leftovers(self, known: set[str]) -> None:
        folder = self._folder / "topics"
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in known:  # deleted, but the process ended before its files were
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
