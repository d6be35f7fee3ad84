"""The broker's state, and the few things that happen to it outside a request: waking fetches, time, memory."""

import asyncio
import logging
import time
from collections.abc import Iterator

from services.broker.group_timers import Groups
from services.broker.log import PartitionLog
from services.broker.offsets import Offsets
from services.broker.settings import BrokerSettings
from services.broker.storage import NoStorage, Storage
from services.broker.topic_config import TopicConfig
from services.broker.topics import Topics

logger = logging.getLogger("railbus.broker")

EXPIRE_EVERY_S = 1.0


class Waiter:
    """Somebody who waits for a partition to grow."""

    __slots__ = ()

    def woken(self) -> None:
        """One of its partitions has grown, or is gone."""
        raise NotImplementedError


class Broker:
    """All state of one broker. Lives on one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.port = 0  # known when it listens
        self.storage: Storage | NoStorage = Storage(settings.data_dir) if settings.data_dir else NoStorage()
        self.topics = Topics(TopicConfig(retention_bytes=settings.retention_bytes), self.storage)
        self.offsets = Offsets(self.storage)
        self.groups = Groups(settings, self.storage)
        self._waiters: dict[PartitionLog, dict[Waiter, None]] = {}
        self._woken: dict[Waiter, None] = {}
        self._memory_warned = False
        self._unchecked_bytes = 0  # appended since memory was last looked at
        self._chores: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Load what was kept and begin the chores."""
        self.storage.load(self.topics, self.offsets, now_ms())
        self.groups.restore(self.storage.load_groups())
        self._do_chores()

    def stop(self) -> None:
        """End the chores and sync the files."""
        if self._chores is not None:
            self._chores.cancel()
        self.groups.stop()
        self.storage.close()

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """A partition's log, or None."""
        found = self.topics.get(topic)
        return found.partition(partition) if found is not None else None

    # Waiting fetches

    def wait_for(self, logs: list[PartitionLog], waiter: Waiter) -> None:
        """Wake this waiter when one of these grows."""
        for log in logs:
            self._waiters.setdefault(log, {})[waiter] = None

    def stop_waiting(self, logs: list[PartitionLog], waiter: Waiter) -> None:
        """It no longer waits."""
        for log in logs:
            waiting = self._waiters.get(log)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._waiters[log]
        self._woken.pop(waiter, None)

    def appended(self, log: PartitionLog, size: int) -> None:
        """A batch of this size is new in the log."""
        self.wake(log)
        self._unchecked_bytes += size
        if self._unchecked_bytes > self.settings.memory_bytes // 16:
            self.forget_old()

    def wake(self, log: PartitionLog) -> None:
        """Wake who waits for this log, once per turn of the event loop however much is appended in it."""
        waiting = self._waiters.get(log)
        if waiting:
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._wake_all)
            self._woken.update(waiting)

    def _wake_all(self) -> None:
        woken, self._woken = self._woken, {}
        for waiter in woken:
            waiter.woken()

    # Time and memory

    def _do_chores(self) -> None:
        self.forget_old()
        self._chores = asyncio.get_running_loop().call_later(EXPIRE_EVERY_S, self._do_chores)

    def _logs(self) -> Iterator[PartitionLog]:
        return (log for topic in self.topics for log in topic.partitions)

    def forget_old(self) -> None:
        """Drop what retention no longer covers, and what memory has no room for."""
        self._unchecked_bytes = 0
        try:
            for log in self._logs():
                log.expire(now_ms())
            self._bound_memory()
        except OSError as error:
            logger.error("old records could not be dropped from the data directory: %s", error)  # noqa: TRY400

    def _bound_memory(self) -> None:
        """Drop the oldest records of the largest partitions while all together are over the bound."""
        logs = list(self._logs())
        total = sum(log.memory_bytes for log in logs)
        while total > self.settings.memory_bytes:
            largest = max(logs, key=lambda log: log.memory_bytes)
            before = largest.memory_bytes
            if not largest.drop_one(now_ms()):
                return
            total -= before - largest.memory_bytes
            if not self._memory_warned:
                self._memory_warned = True
                logger.warning(
                    "records take more than %d bytes of memory: the oldest are dropped before their retention; "
                    "raise --memory-bytes or lower retention.bytes",
                    self.settings.memory_bytes,
                )


def now_ms() -> int:
    """Milliseconds since the epoch: what records and retention are measured by."""
    return time.time_ns() // 1_000_000
