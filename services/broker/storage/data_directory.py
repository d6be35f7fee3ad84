"""The data directory: topics, records, committed offsets and consumer groups on disk.

Data is written before the client gets a response. It is synced to the disk only when the broker stops.
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
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.file_segment import OpenSegments, TailBudget
from services.broker.storage.offset_journal import OffsetJournal
from services.broker.storage.partition_files import PartitionFiles
from services.broker.storage.partition_log import PartitionLog
from services.broker.storage.segment import SegmentStore
from services.broker.storage.topic_config import InvalidConfig
from services.broker.storage.topics import Topics, TopicState
from services.runtime.errors import DISK_FULL

logger = logging.getLogger("railbus.broker")

_FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT_ID = "unknown"

_MUCH_BYTES = 50_000_000

TAIL_BYTES = 64 * 1024 * 1024  # memory for the newest batches of all partitions


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
    """Takes the place of `Storage` if there is no data directory. It stores nothing."""

    def load(self, topics: Topics, offsets: CommittedOffsets, now_ms: int) -> None: ...

    def segments(self, topic: str, partition: int) -> SegmentStore | None:  # noqa: ARG002
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
    """Stores everything that survives a restart of the broker, in one directory."""

    def __init__(self, folder: Path, tail_bytes: int = TAIL_BYTES) -> None:
        self._folder = folder
        self._partitions: dict[TopicPartition, PartitionFiles] = {}
        self._opened = OpenSegments()
        self._budget = TailBudget(tail_bytes)
        self._topics: Topics | None = None  # None until they are loaded
        self._lock = _lock(folder)
        self._journal = OffsetJournal(folder / "offsets.jsonl")

    def load(self, topics: Topics, offsets: CommittedOffsets, now_ms: int) -> None:
        """Load topics and committed offsets.

        Raises:
            BadSetting: The directory cannot be used, or its files cannot be read.
        """
        try:
            # A running broker keeps the machine's boot id in the lock file, and empties the file after a clean stop.
            trusted = _was_synced_or_same_boot(self._lock)
            stored = self._read_topics()
            self._load_topics(topics, stored, now_ms, trusted=trusted)
            self._remove_leftovers(set(stored))
            self._journal.load(offsets)
            # A kill during the deletion of a topic leaves its offsets. They must not apply to a new topic of its name.
            for topic in offsets.topics() - stored.keys():
                offsets.forget_topic(topic)
            if not trusted:
                _lower_to_ends(offsets, topics)
            _write_lock(self._lock, _boot_id())
        except OSError as error:
            remedy = "free some space on its disk" if error.errno in DISK_FULL else "repair it or name another"
            raise BadSetting(f"--data-dir {self._folder}: cannot be used: {error}; {remedy}") from None
        self._topics = topics

    def _load_topics(self, topics: Topics, stored: Mapping[str, _StoredTopic], now_ms: int, *, trusted: bool) -> None:
        read_bytes = 0
        for name, entry in stored.items():
            try:
                config = topics.defaults.with_settings(entry.config)
            except InvalidConfig as error:
                raise BadSetting(f"{self._folder / 'topics.json'}: topic {name}: {error}") from None
            topic = TopicState(name, config, [])
            for index in range(entry.partitions):
                files = self._files(name, index)
                log = PartitionLog(config, now_ms=now_ms, store=files)
                read_bytes += files.load(log, now_ms, trusted=trusted)
                topic.partitions.append(log)
            topics.adopt(topic)
        if read_bytes > _MUCH_BYTES:
            logger.info("%s: read %d MB of batches whose index was missing", self._folder, read_bytes // 1_000_000)

    def segments(self, topic: str, partition: int) -> SegmentStore | None:
        return self._files(topic, partition)

    def _files(self, topic: str, partition: int) -> PartitionFiles:
        folder, place = self._folder / "topics" / topic / str(partition), TopicPartition(topic, partition)
        left = self._partitions.pop(place, None)
        if left is not None:  # an earlier attempt to create this partition failed
            left.close()
        files = self._partitions[place] = PartitionFiles(folder, self._opened, self._budget)
        return files

    def save_topics(self, topics: Mapping[str, TopicState]) -> None:
        listed = {each.name: _StoredTopic(len(each.partitions), dict(each.config.given)) for each in topics.values()}
        self._write("topics.json", _TopicsFile(_FORMAT, listed))

    def delete_topic(self, name: str) -> None:
        for place in [place for place in self._partitions if place.topic == name]:
            self._partitions.pop(place).close()
        shutil.rmtree(self._folder / "topics" / name, ignore_errors=True)

    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        self._journal.committed(group, place, committed)

    def forgotten(self, group: str, place: TopicPartition) -> None:
        self._journal.forgotten(group, place)

    def load_groups(self) -> dict[str, StableGroup]:
        """Return the stored groups; an empty dict if there are none or they cannot be read."""
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
        self._write("groups.json", _GroupsFile(_FORMAT, dict(groups)))

    def close(self) -> None:
        """Sync and close every file, and unlock the directory."""
        # Indexes and producer states are written first, so that the next start is fast even if this process is killed
        # during the sync.
        for topic in self._topics or ():
            for log in topic.partitions:
                log.close()
        try:
            for files in self._partitions.values():
                files.sync()
                files.close()
            self._journal.close()
            if self._topics is not None:
                _write_lock(self._lock, "")
        except OSError as error:
            log_storage_error(str(self._folder), error)
        self._opened.close_all()
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

    def _remove_leftovers(self, known: set[str]) -> None:
        folder = self._folder / "topics"
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in known:  # its topic was deleted, but a kill came before its files were removed
                shutil.rmtree(path, ignore_errors=True)


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


def _lower_to_ends(offsets: CommittedOffsets, topics: Topics) -> None:
    # A crash of the machine may lose the end of a log but not the commits. New records get the lost offsets. A group
    # that continued at its committed offset would never read them.
    for group in tuple(offsets.groups()):
        for place, committed in tuple(offsets.of(group).items()):
            topic = topics.get(place.topic)
            log = None if topic is None else topic.partition(place.partition)
            if log is None:
                offsets.forget(group, place)
            elif committed.offset > log.end:
                offsets.commit(group, place, committed._replace(offset=log.end))


def _was_synced_or_same_boot(lock: int) -> bool:
    left = os.pread(lock, 100, 0).decode(errors="replace").strip()
    return not left or left == _boot_id() != _NO_BOOT_ID


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return _NO_BOOT_ID


def _write_lock(lock: int, content: str) -> None:
    # Without a sync, which takes seconds if gigabytes of other data are not written yet. After a loss of power, the
    # file may be empty, as after a clean stop. The next start then uses an index if its segment file has the size and
    # the modification time that the index contains. File systems write both after the data of the file.
    os.ftruncate(lock, 0)
    os.pwrite(lock, content.encode(), 0)
