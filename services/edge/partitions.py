"""Which partitions of the stream log this edge follows: its homes, and those where its open streams live."""

import asyncio
import secrets
from typing import Final

from schemas.topics import STREAMS
from services.bus import Assignment, BusSettings, GroupReader, TailReader, partition_for
from services.edge.homes import FollowPlan, homes_of, id_at_home
from services.edge.hub import Hub
from services.runtime.logging import logger

_log = logger("edge")

GROUP: Final = "edge-homes"
PROBE_S: Final = 1.0
"""Longest time for the broker to answer the readiness probe."""


class Hold:
    """Keeps a partition followed for one stream.

    Attributes:
        partition: Which.
    """

    __slots__ = ("_held", "_partitions", "partition")

    def __init__(self, partitions: "Partitions", partition: int) -> None:
        self.partition = partition
        self._partitions = partitions
        self._held = True

    def release(self) -> None:
        """End the hold; a second call does nothing."""
        if self._held:
            self._held = False
            self._partitions.release(self.partition)


class Partitions:
    """Follows partitions by choice; the group only says which are home, and a rebalance interrupts nothing.

    Attributes:
        settled: Set once there are homes.
    """

    def __init__(self, settings: BusSettings, hub: Hub, *, instance: str, static_id: str | None) -> None:
        self.settled = asyncio.Event()
        self._settings = settings
        self._instance = instance
        self._tail = TailReader(settings, handler=hub.handle, wants=hub.wants)
        self._group = GroupReader(
            settings, topics=[STREAMS], group=GROUP, handler=None, commit="never", on_assigned=self._assigned,
            instance_id=static_id,
        )  # fmt: skip
        self._plan = FollowPlan()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while a partition begins or ceases to be followed: of two that begin at once one would go back."""

    @property
    def homes(self) -> frozenset[int]:
        """Partitions that are followed for good: new requests live there."""
        return self._plan.homes

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail.run())
            group.create_task(self._group.run())
            group.create_task(self._settle())

    def place(self, now_ms: int) -> tuple[str, Hold] | None:
        """Choose a new request's id and hold its partition; None without a home.

        Both in one step of the event loop: a rebalance in between could end the reading of that partition.
        """
        request_id = id_at_home(
            self.homes,
            partition_of=lambda request_id: partition_for(request_id, self._settings.partitions),
            now_ms=now_ms,
            random_bits=lambda: secrets.randbits(74),
        )
        if request_id is None:
            return None
        return request_id, self._hold(partition_for(request_id, self._settings.partitions))

    async def hold(self, partition: int) -> Hold:
        """Hold any partition; return when every record from now on is delivered."""
        hold = self._hold(partition)
        try:
            await self._follow(partition)
        except BaseException:
            hold.release()
            raise
        return hold

    def release(self, partition: int) -> None:
        """End one hold; for ``Hold`` alone."""
        self._plan.release(partition)
        self._changed.set()

    def retire(self) -> None:
        """Accept no new requests; go on reading."""
        self._plan.retire()

    async def reachable(self) -> bool:
        """Whether the broker answers and at least one home is followed."""
        if not self.homes:
            return False
        try:
            async with asyncio.timeout(PROBE_S):
                await self._tail.end_offset(STREAMS, min(self.homes))
        except TimeoutError:
            return False
        return True

    def _hold(self, partition: int) -> Hold:
        self._plan.hold(partition)
        return Hold(self, partition)

    def _assigned(self, assigned: Assignment) -> None:
        """Let ``_settle`` follow them: the homes stay what they were until then."""
        numbers = frozenset(number for _, number in assigned.held)
        self._plan.assign(homes_of(numbers, self._instance, self._settings.partitions))
        self._changed.set()

    async def _settle(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while missing := self._plan.missing():  # asked each time: another assignment may have come
                await self._follow(min(missing))
            if self._plan.settle():
                self.settled.set()
                _log.info("home partitions: %s", ", ".join(map(str, sorted(self.homes))))
            await self._unfollow_unneeded()

    async def _follow(self, partition: int) -> None:
        """Read the partition from its end on; one that is followed already is read on from where it is."""
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
                self._plan.followed.discard(partition)  # first: a hold that comes meanwhile follows it anew
                await self._tail.unfollow(STREAMS, partition)
