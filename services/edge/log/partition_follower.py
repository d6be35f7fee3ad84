"""Following partitions of the stream log: the home partitions, and those of open streams."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from schemas.topics import STREAMS
from services.bus import Assignment, BusSettings, GroupReader, RecordFilter, RecordHandler, TailReader, partition_for
from services.edge.log.follow_plan import FollowPlan, home_partitions_for, new_local_request_id
from services.runtime.logging import logger

_log = logger("edge")

GROUP: Final = "edge-homes"
PROBE_S: Final = 1.0
"""Longest time for the broker to answer the readiness probe."""


class PartitionHold:
    """Held by one stream: while it is held, the edge reads its partition."""

    __slots__ = ("_held", "_partitions", "partition")

    def __init__(self, partitions: "PartitionFollower", partition: int) -> None:
        self.partition = partition
        self._partitions = partitions
        self._held = True

    def release(self) -> None:
        """End the hold; a second call does nothing."""
        if self._held:
            self._held = False
            self._partitions.release(self.partition)


class PartitionFollower:
    """A tail reader of chosen partitions. The group only assigns the homes, so a rebalance interrupts no stream.

    Args:
        settings: How to reach the broker.
        handler: Gets the records of followed partitions.
        wants: Returns whether a record is wanted.
        instance: Name of this edge process.
        static_id: A name that this edge keeps when it restarts.
        on_unfollow: Called with a partition that is no longer followed.

    Attributes:
        homes_ready: Set once there are homes.
    """

    def __init__(
        self, settings: BusSettings, *, handler: RecordHandler, wants: RecordFilter, instance: str,
        static_id: str | None, on_unfollow: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.homes_ready = asyncio.Event()
        self._settings = settings
        self._instance = instance
        self._on_unfollow = on_unfollow
        self._tail = TailReader(settings, handler=handler, record_filter=wants, include_newer=True)
        self._group = GroupReader(
            settings, topics=[STREAMS], group=GROUP, handler=None, commit="never", on_assigned=self._assigned,
            instance_id=static_id,
        )  # fmt: skip
        self._plan = FollowPlan()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while a partition is added or removed: two additions at once would read some records twice."""

    @property
    def homes(self) -> frozenset[int]:
        """The partitions of new requests."""
        return self._plan.homes

    async def run(self) -> None:
        """Read every followed partition, and follow the home partitions that the group assigns, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail.run())
            group.create_task(self._group.run())
            group.create_task(self._update_homes())

    def reserve_request_id(self, now_ms: int) -> tuple[str, PartitionHold] | None:
        """Choose a new request's id and hold its partition; return None without a home.

        Both in one step of the event loop: a rebalance in between could unfollow that partition.
        """
        request_id = new_local_request_id(
            self.homes,
            partition_of=lambda request_id: partition_for(request_id, self._settings.partitions),
            now_ms=now_ms,
            random_bits=lambda: secrets.randbits(74),
        )
        if request_id is None:
            return None
        return request_id, self._hold(partition_for(request_id, self._settings.partitions))

    async def hold(self, partition: int) -> PartitionHold:
        """Follow a partition, also one of another edge; return once its new records are delivered as they come."""
        hold = self._hold(partition)
        try:
            await self._follow(partition)
        except BaseException:
            hold.release()
            raise
        return hold

    def release(self, partition: int) -> None:
        """End one hold; only ``PartitionHold`` calls this."""
        self._plan.release(partition)
        if partition not in self._plan.homes:  # a home is followed without holds
            self._changed.set()

    def retire(self) -> None:
        """Accept no new requests, and keep reading."""
        self._plan.retire()

    async def reachable(self) -> bool:
        """Return whether the broker answers and at least one home is followed."""
        if not self.homes:
            return False
        try:
            async with asyncio.timeout(PROBE_S):
                await self._tail.end_offset(STREAMS, min(self.homes))
        except TimeoutError:
            return False
        return True

    def _hold(self, partition: int) -> PartitionHold:
        self._plan.hold(partition)
        return PartitionHold(self, partition)

    def _assigned(self, assigned: Assignment) -> None:
        """Note the next homes. ``_update_homes`` follows them, and only then switches to them."""
        numbers = frozenset(number for _, number in assigned.held)
        self._plan.assign(home_partitions_for(numbers, self._instance, self._settings.partitions))
        self._changed.set()

    async def _update_homes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while missing := self._plan.missing():  # again each time: a new assignment may have arrived
                await self._follow(min(missing))
            if self._plan.switch_homes():
                self.homes_ready.set()
                _log.info("home partitions: %s", ", ".join(map(str, sorted(self.homes))))
            await self._unfollow_unneeded()

    async def _follow(self, partition: int) -> None:
        """Read the partition from its end, unless it is followed already."""
        if partition in self._plan.followed:
            return
        async with self._lock:
            if partition not in self._plan.followed:
                await self._tail.follow(STREAMS, partition, "end")
                self._plan.followed.add(partition)

    async def _unfollow_unneeded(self) -> None:
        async with self._lock:
            while unneeded := self._plan.unneeded():
                partition = min(unneeded)
                self._on_unfollow(partition)
                self._plan.followed.discard(partition)  # first: a hold that arrives meanwhile follows it again
                await self._tail.unfollow(STREAMS, partition)
