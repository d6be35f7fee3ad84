import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka.errors import KafkaError

from services.bus.groups.commit_tracker import CommitTracker
from services.bus.groups.membership import GroupMembership
from services.bus.records import TopicPartitions
from services.runtime.logging import logger
from services.runtime.metrics import COMMITS

_log = logger("bus")

Settle = Callable[[TopicPartitions], Awaitable[None]]
"""Receives partitions. Waits until each of their records on which work has started is marked as done."""

COMMIT_EVERY_S: Final = 0.1
"""Minimum time in seconds between two commits. After a crash, work that was not committed yet is done twice."""

RETRY_S: Final = 0.05
"""If a rebalance or the broker prevents a commit before partitions are given away, it is tried again after this many
seconds."""


class Committer:
    """Commits the offsets of one group member: regularly, and a last time before partitions move to another member.

    Args:
        settle: Waits until the started work on given partitions is done. If None, partitions move without this wait.
        patience_s: Maximum time in seconds for each of two steps: ``settle``, and the last commit.
    """

    def __init__(
        self, tracker: CommitTracker, member: GroupMembership, *, group: str, settle: Settle | None, patience_s: float
    ) -> None:
        self._tracker = tracker
        self._member = member
        self._group = group
        self._settle = settle
        self._patience_s = patience_s
        self._due = asyncio.Event()
        self._handing_over: asyncio.Task[None] | None = None
        self._failing = False

    def soon(self) -> None:
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if not await self._commit():
                self._due.set()
            await asyncio.sleep(COMMIT_EVERY_S)

    async def commit_last(self, limit_s: float) -> None:
        """Try for at most ``limit_s`` seconds to commit all finished work. Never raise."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not await self._commit() and self._member.known:  # noqa: ASYNC110 - a few times only
                    await asyncio.sleep(RETRY_S)

    async def before_rejoin(self) -> None:
        if self._handing_over is not None:
            await asyncio.wait({self._handing_over})
        await self.commit_last(self._patience_s)

    async def hand_over(self, partitions: TopicPartitions) -> None:
        """Finish the started work on these partitions, commit, and rejoin the group so that other members get them."""
        self._handing_over = asyncio.current_task()
        try:
            if self._settle is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s):
                        await self._settle(partitions)
            await self.commit_last(self._patience_s)
            self._tracker.forget(partitions)
        finally:
            self._handing_over = None
        self._member.rejoin()

    async def _commit(self) -> bool:
        positions = {p: at for p, at in self._tracker.due().items() if self._member.holds(p)}
        if not positions:
            return True
        try:
            if not await self._member.commit(positions):
                return False  # a rebalance came first; the offsets stay due
        except KafkaError as error:
            if not self._failing:
                _log.warning("group %s: a commit failed, and is tried again: %r", self._group, error)
            self._failing = True
            return False
        self._failing = False
        self._tracker.committed(positions)
        COMMITS.labels(self._group).inc()
        return True
