"""Which partitions of the stream log this edge follows: its homes, and those where resumed requests live."""

import asyncio
from collections import Counter
from typing import Final

from schemas.topics import STREAMS
from services.bus import Assignment, BusSettings, GroupReader, TailReader
from services.edge.homes import homes_of
from services.edge.hub import Hub
from services.runtime.logging import logger

_log = logger("edge")

GROUP: Final = "edge-homes"
PROBE_S: Final = 1.0
"""Longest time for the broker to answer the readiness probe."""


class Partitions:
    """Follows partitions by choice; the group only says which are home, and a rebalance interrupts nothing.

    Attributes:
        homes: Partitions that are followed for good: new requests live there.
        settled: Set once there are any.
    """

    def __init__(self, settings: BusSettings, hub: Hub, *, instance: str, static_id: str | None) -> None:
        self.homes: frozenset[int] = frozenset()
        self.settled = asyncio.Event()
        self._settings = settings
        self._instance = instance
        self._tail = TailReader(settings, handler=hub.handle, wants=hub.wants)
        self._group = GroupReader(
            settings, topics=[STREAMS], group=GROUP, handler=None, commit="never", on_assigned=self._assigned,
            instance_id=static_id,
        )  # fmt: skip
        self._wanted: frozenset[int] | None = None
        self._changed = asyncio.Event()
        self._guests: Counter[int] = Counter()
        self._followed: set[int] = set()
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail.run())
            group.create_task(self._group.run())
            group.create_task(self._settle())

    async def hold(self, partition: int) -> None:
        """Returns when every record from now on is delivered; ``release`` ends it."""
        self._guests[partition] += 1
        try:
            await self._follow(partition)
        except BaseException:
            self.release(partition)
            raise

    def release(self, partition: int) -> None:
        """One that held the partition needs it no more."""
        self._guests[partition] -= 1
        if not self._guests[partition]:
            del self._guests[partition]
            self._changed.set()

    def retire(self) -> None:
        """No new requests from now on; what is followed is followed on."""
        self.homes = frozenset()

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

    def _assigned(self, assigned: Assignment) -> None:
        """The homes stay what they were until the new ones are followed."""
        numbers = frozenset(number for _, number in assigned.held)
        self._wanted = homes_of(numbers, self._instance, self._settings.partitions)
        self._changed.set()

    async def _settle(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._wanted is not None and self._wanted != self.homes:
                wanted = self._wanted
                for partition in sorted(wanted):
                    await self._follow(partition)
                self.homes = wanted
                self.settled.set()
                _log.info("home partitions: %s", ", ".join(map(str, sorted(wanted))))
            await self._unfollow_unneeded()

    async def _follow(self, partition: int) -> None:
        async with self._lock:
            if partition not in self._followed:
                await self._tail.follow(STREAMS, partition, "end")
                self._followed.add(partition)

    async def _unfollow_unneeded(self) -> None:
        async with self._lock:
            for partition in self._followed - (self._wanted or frozenset()) - self._guests.keys():
                self._followed.discard(partition)
                await self._tail.unfollow(STREAMS, partition)
