"""Read the partitions of the stream log that this edge needs."""

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
"""Maximum time for the broker to answer the readiness probe, in seconds."""


class PartitionHold:
    """Makes the edge read a partition for a stream, at least until ``release`` is called."""

    __slots__ = ("_held", "_partitions", "partition")

    def __init__(self, partitions: "PartitionFollower", partition: int) -> None:
        self.partition = partition
        self._partitions = partitions
        self._held = True

    def release(self) -> None:
        """Let the edge stop reading the partition, if nothing else needs it. A second call has no effect."""
        if self._held:
            self._held = False
            self._partitions.release(self.partition)


class PartitionFollower:
    """Reads the home partitions of this edge, and the partitions of its open streams.

    A consumer group assigns the home partitions.

    Args:
        handler: Called with the records.
        wants: Returns whether a record must be decoded and passed to ``handler``.
        instance: Name of this edge process.
        static_id: The ``group.instance.id`` of this edge, which stays the same when the edge is restarted; None if
            there is none.
        on_unfollow: Called with the number of a partition just before the edge stops reading it.

    Attributes:
        homes_ready: Set when this edge gets its first home partitions.
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
        """Locked while a partition is added or removed, because two simultaneous additions would read records twice."""

    @property
    def homes(self) -> frozenset[int]:
        return self._plan.homes

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail.run())
            group.create_task(self._group.run())
            group.create_task(self._update_homes())

    def reserve_request_id(self, now_ms: int) -> tuple[str, PartitionHold] | None:
        """Return the id of a new request, and a hold on the id's partition.

        The edge reads this partition at least until the hold is released.

        The edge puts new requests only into its home partitions. So random ids are drawn until one belongs to a home
        partition. Return None if there is no home partition, or if ``MAX_TRIES`` ids all belong to other partitions.
        """
        # Without an ``await``, because a rebalance before the hold could unfollow the partition.
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
        """Read a partition until the returned hold is released. Start now if the edge does not read the partition yet.

        The edge misses no record that is appended after this call returns.
        """
        hold = self._hold(partition)
        try:
            await self._follow(partition)
        except BaseException:
            hold.release()
            raise
        return hold

    def release(self, partition: int) -> None:
        self._plan.release(partition)
        if partition not in self._plan.homes:  # a home partition is followed without a hold
            self._changed.set()

    def retire(self) -> None:
        """Make ``reserve_request_id`` return None from now on. The partitions of open streams are still read."""
        self._plan.retire()

    async def reachable(self) -> bool:
        """Return whether the broker answers and there is at least one home partition."""
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
        numbers = frozenset(number for _, number in assigned.held)
        self._plan.assign(home_partitions_for(numbers, self._instance, self._settings.partitions))
        self._changed.set()

    async def _update_homes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while missing := self._plan.missing():  # again, because an assignment may have come
                await self._follow(min(missing))
            if self._plan.switch_homes():
                self.homes_ready.set()
                _log.info("home partitions: %s", ", ".join(map(str, sorted(self.homes))))
            await self._unfollow_unneeded()

    async def _follow(self, partition: int) -> None:
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
                self._plan.followed.discard(partition)  # before the await: a new hold follows it again
                await self._tail.unfollow(STREAMS, partition)
