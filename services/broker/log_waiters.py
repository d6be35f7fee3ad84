"""Tell the waiting Fetch requests, and the fetch sessions, that there are new records."""

import asyncio
from collections.abc import Iterable

from services.broker.storage.partition_log import PartitionLog


class LogWaiter:
    """Base class of objects that are notified of new records."""

    __slots__ = ()

    def on_growth(self) -> None:
        raise NotImplementedError


class LogWaiters:
    """The `LogWaiter` objects of one broker, by partition. Use this object from one event loop only."""

    def __init__(self) -> None:
        self._by_log: dict[PartitionLog, dict[LogWaiter, None]] = {}
        self._woken: dict[LogWaiter, None] = {}

    def add(self, waiter: LogWaiter, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            self._by_log.setdefault(log, {})[waiter] = None

    def remove(self, waiter: LogWaiter, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            waiting = self._by_log.get(log)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._by_log[log]
        self._woken.pop(waiter, None)

    def wake(self, log: PartitionLog) -> None:
        """Schedule a call of `on_growth` for every waiter of this log."""
        waiting = self._by_log.get(log)
        if waiting:
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._wake_all)
            self._woken.update(waiting)

    def _wake_all(self) -> None:
        woken, self._woken = self._woken, {}
        for waiter in woken:
            waiter.on_growth()
