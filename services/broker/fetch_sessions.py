"""Fetch sessions (KIP-227): the broker remembers the partitions that a client fetches."""

import secrets
import time
from collections.abc import Callable
from typing import Final, Protocol

from services.broker.log_waiters import LogWaiter, LogWaiters
from services.broker.storage.partition_log import PartitionLog

MOST_SESSIONS: Final = 1_000
"""Maximum number of sessions, as in Kafka (``max.incremental.fetch.session.cache.slots``).

A consumer that gets no session names all its partitions in each request.
"""

MOST_PARTITIONS: Final = 100_000
"""Maximum number of partitions in all sessions together. At this maximum, the sessions take about 20 MB of memory."""

IDLE_S: Final = 120.0
"""Time in seconds. A session that was unused for this long may be removed for a new one, as in Kafka."""

_LARGEST_ID: Final = 2**31 - 1


class FetchedPartition:
    """A partition that a client fetches.

    Attributes:
        topic: Topic name, encoded as UTF-8.
        log: None if the partition does not exist.
        told_end: Log end offset that the client was last told for this partition. It is -1 before the first response,
            and after a response that reported an error for this partition.
        told_start: The same for the log start offset.
    """

    __slots__ = ("log", "max_bytes", "offset", "partition", "told_end", "told_start", "topic")

    def __init__(self, topic: bytes, partition: int, offset: int, max_bytes: int, log: PartitionLog | None) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.log = log
        self.told_end = self.told_start = -1


FindLog = Callable[[str, int], PartitionLog | None]


class WaitingFetch(Protocol):
    def on_growth(self) -> None: ...


class FetchSession(LogWaiter):
    """The partitions that one client fetches.

    Attributes:
        next_epoch: Epoch that the next request of this session must have.
        waiting: The Fetch request that waits for new records; None if no request waits.
        used_s: Time of the last request, in seconds on the monotonic clock.
    """

    __slots__ = ("_find_log", "_logs", "_waiters", "next_epoch", "partitions", "session_id", "used_s", "waiting")

    def __init__(
        self, session_id: int, partitions: list[FetchedPartition], find_log: FindLog, waiters: LogWaiters
    ) -> None:
        self.session_id = session_id
        self.next_epoch = 1
        self.partitions = {(each.topic, each.partition): each for each in partitions}
        self.waiting: WaitingFetch | None = None
        self.used_s = time.monotonic()
        self._find_log = find_log
        self._waiters = waiters
        self._logs: list[PartitionLog] = []
        self._watch()

    def on_growth(self) -> None:
        if self.waiting is not None:
            self.waiting.on_growth()

    def update(self, asked: list[FetchedPartition], forgotten: list[tuple[bytes, int]]) -> None:
        changed = bool(forgotten)
        for each in asked:
            known = self.partitions.get((each.topic, each.partition))
            if known is None or known.log is not each.log:
                self.partitions[each.topic, each.partition] = each
                changed = True
            else:
                known.offset, known.max_bytes = each.offset, each.max_bytes
        for key in forgotten:
            self.partitions.pop(key, None)
        if changed | self._find_recreated():
            self._watch()

    def give_way(self, served: FetchedPartition) -> None:
        """Move a partition to the end of ``partitions``, so that the next response begins with other partitions."""
        key = (served.topic, served.partition)
        self.partitions[key] = self.partitions.pop(key)

    def close(self) -> None:
        self._waiters.remove(self, self._logs)

    def _find_recreated(self) -> bool:
        found = False
        for each in self.partitions.values():
            if each.log is None or each.log.deleted:
                log = self._find_log(each.topic.decode(), each.partition)
                found = found or log is not each.log
                each.log = log
        return found

    def _watch(self) -> None:
        self._waiters.remove(self, self._logs)
        self._logs = [each.log for each in self.partitions.values() if each.log is not None]
        self._waiters.add(self, self._logs)


class FetchSessions:
    def __init__(self, find_log: FindLog, waiters: LogWaiters) -> None:
        self._find_log = find_log
        self._waiters = waiters
        # The least recently used session is first.
        self._by_id: dict[int, FetchSession] = {}
        self._partitions = 0

    def find(self, session_id: int) -> FetchSession | None:
        session = self._by_id.pop(session_id, None)
        if session is not None:
            session.used_s = time.monotonic()
            self._by_id[session_id] = session
        return session

    def open(self, partitions: list[FetchedPartition]) -> FetchSession | None:
        """Return a new session; None if there would be too many sessions or partitions."""
        now_s = time.monotonic()
        while self._full(len(partitions)):
            oldest = next(iter(self._by_id.values()), None)
            if oldest is None or oldest.used_s > now_s - IDLE_S:
                return None
            self.close(oldest.session_id)
        session_id = 1 + secrets.randbelow(_LARGEST_ID)
        while session_id in self._by_id:
            session_id = 1 + secrets.randbelow(_LARGEST_ID)
        session = self._by_id[session_id] = FetchSession(session_id, partitions, self._find_log, self._waiters)
        self._partitions += len(session.partitions)
        return session

    def update(self, session: FetchSession, asked: list[FetchedPartition], forgotten: list[tuple[bytes, int]]) -> bool:
        """Update a session and return true.

        If all sessions together would then have too many partitions, close this session instead and return false.
        """
        if self._partitions + len(asked) > MOST_PARTITIONS:
            more = sum((each.topic, each.partition) not in session.partitions for each in asked)
            if more and self._partitions + more > MOST_PARTITIONS:
                self.close(session.session_id)
                return False
        before = len(session.partitions)
        session.update(asked, forgotten)
        self._partitions += len(session.partitions) - before
        return True

    def close(self, session_id: int) -> None:
        session = self._by_id.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.close()

    def _full(self, more: int) -> bool:
        return len(self._by_id) >= MOST_SESSIONS or self._partitions + more > MOST_PARTITIONS
