"""The broker's state and its periodic maintenance: retention, compaction and the memory limit."""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

from services.broker.fetch_sessions import FetchSessions
from services.broker.groups.committed_offsets import CommittedOffsets
from services.broker.groups.coordinator import GroupCoordinator
from services.broker.log_waiters import LogWaiters
from services.broker.protocol.wire import Reader
from services.broker.settings import BrokerSettings
from services.broker.storage.data_directory import NoStorage, Storage
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.partition_log import PartitionLog
from services.broker.storage.topic_config import TopicConfig
from services.broker.storage.topics import Topics

logger = logging.getLogger("railbus.broker")

RETENTION_INTERVAL_S = 1.0


class BrokerState:
    """All state of one broker. Use this object from one event loop only."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.port = 0  # 0 until the broker listens
        self.storage: Storage | NoStorage = Storage(settings.data_dir) if settings.data_dir else NoStorage()
        self.topics = Topics(TopicConfig(retention_bytes=settings.default_retention), self.storage)
        self.offsets = CommittedOffsets(self.storage)
        self.groups = GroupCoordinator(settings, self.storage)
        self.waiters = LogWaiters()
        self.fetch_sessions = FetchSessions(self.log, self.waiters)
        self._memory_warned = False
        self._bytes_since_check = 0  # appended since memory was last checked
        self._maintenance: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.storage.load(self.topics, self.offsets, now_ms())
        self.groups.restore(self.storage.load_groups())
        self._run_maintenance()

    def stop(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
        self.groups.stop()
        self.storage.close()

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        found = self.topics.get(topic)
        return found.partition(partition) if found is not None else None

    def appended(self, log: PartitionLog, size: int) -> None:
        """Notify waiting fetches that `size` bytes were appended to this log."""
        self.waiters.wake(log)
        self._bytes_since_check += size
        # Records must stay within the memory limit.
        if self._bytes_since_check > self.settings.memory_bytes // 16:
            self.drop_expired()

    # Time and memory

    def _run_maintenance(self) -> None:
        self.drop_expired()
        self._maintenance = asyncio.get_running_loop().call_later(RETENTION_INTERVAL_S, self._run_maintenance)

    def _logs(self) -> Iterator[PartitionLog]:
        return (log for topic in self.topics for log in topic.partitions)

    def drop_expired(self) -> None:
        """Enforce retention and compact logs. Without a data directory, also enforce the memory limit."""
        self._bytes_since_check = 0
        for log in self._logs():
            try:
                log.expire(now_ms())
                log.compact(now_ms())
            except OSError as error:  # a full disk may have no room for one partition's next segment
                log_storage_error("retention", error)
        if self.settings.data_dir is None:
            self._bound_memory()

    def _bound_memory(self) -> None:
        logs = list(self._logs())
        total = sum(log.memory_bytes for log in logs)
        while total > self.settings.memory_bytes:
            largest = max(logs, key=lambda log: log.memory_bytes)
            before = largest.memory_bytes
            if not largest.drop_oldest_segment(now_ms()):
                return
            total -= before - largest.memory_bytes
            if not self._memory_warned:
                self._memory_warned = True
                logger.warning(
                    "records take more than %d bytes of memory: the oldest are dropped before their retention; "
                    "raise --memory-bytes or lower retention.bytes",
                    self.settings.memory_bytes,
                )


class ApiRequest(NamedTuple):
    """A request with a decoded header. The handler decodes the body."""

    broker: BrokerState
    key: int
    version: int
    client_id: str
    client_host: str
    body: Reader


def now_ms() -> int:
    return time.time_ns() // 1_000_000
