"""Following partitions by choice: no group, so no rebalance ever interrupts."""

import asyncio
from collections.abc import Mapping
from typing import Literal

from schemas.topics import Topic
from services.bus.cluster import Cluster
from services.bus.fetch_wire import Partition
from services.bus.fetcher import Events, Fetcher
from services.bus.intake import Intake
from services.bus.records import AtTime, Handler, Wants
from services.bus.room import Room
from services.bus.settings import BusSettings

Start = int | AtTime | Literal["end", "beginning"]


class TailReader:
    """Follows the partitions it is told to, each from where it is told.

    Args:
        settings: Where and how.
        handler: See ``services.bus.records.Handler``.
        wants: Records it says no to are passed over without decoding.
        newer: Records written for a newer reader come as ``Unread`` too; else they are only counted.
        room: Backpressure; see ``Room``.

    Every method but ``run`` waits until ``run`` has connected. While the broker is away they wait too: put them under a
    timeout where that matters.

    A partition whose next offset is gone from the broker is read on as ``Fetcher`` says: nothing that is there is
    skipped, and where the broker has lost the end of the log some of what was read before may come again.
    """

    def __init__(
        self,
        settings: BusSettings,
        *,
        handler: Handler,
        wants: Wants | None = None,
        newer: bool = False,
        room: Room | None = None,
    ) -> None:
        self._handler = handler
        self._cluster = Cluster(settings, "tail")
        self._fetcher = Fetcher(self._cluster, intake=Intake(wants, newer=newer), hand_over=self._hand_over, room=room)
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Reads until cancelled; while the broker is away it waits, says so once, and goes on.

        Raises:
            UserError: The broker refuses the credentials, or does not let us read.
        """
        await self._cluster.open()
        self._running.set()
        try:
            await self._fetcher.run()
        finally:
            self._running.clear()
            self._fetcher.drop()
            await self._cluster.close()

    async def follow(self, topic: Topic, partition: int, start: Start) -> int:
        """Begins to deliver a partition's records.

        Returns:
            The offset from which every record is delivered. An offset the broker no longer has, or does not have yet,
            is moved to the nearest it has. A partition that is followed already stays where it is, unless ``start`` is
            earlier: then it goes back, and what lies between is delivered again.

        Raises:
            ValueError: The topic has no such partition.
        """
        key = await self._key(topic, partition)
        begin = await self._resolve(key, start)
        position = self._fetcher.position(key)
        if position is not None and position <= begin:
            return position
        self._fetcher.place({key: begin})
        return begin

    async def unfollow(self, topic: Topic, partition: int) -> None:
        """Ends delivery at once; a partition that is not followed is ignored."""
        self._fetcher.drop([(topic.name, partition)])

    def position(self, topic: Topic, partition: int) -> int | None:
        """The offset of the next record to come, wanted or not; None when the partition is not followed."""
        return self._fetcher.position((topic.name, partition))

    async def begin_offset(self, topic: Topic, partition: int) -> int:
        """The offset of the oldest record the broker still has; the end where it has none."""
        return await self._resolve(await self._key(topic, partition), "beginning")

    async def end_offset(self, topic: Topic, partition: int) -> int:
        """The offset the next record will get."""
        return await self._resolve(await self._key(topic, partition), "end")

    async def offset_at(self, topic: Topic, partition: int, time_ms: int) -> int:
        """The first record not appended before ``time_ms``, by the broker's clock (see ``AtTime``); the end if none."""
        return await self._resolve(await self._key(topic, partition), AtTime(time_ms))

    async def _key(self, topic: Topic, partition: int) -> Partition:
        await self._running.wait()
        await self._cluster.know([topic.name])
        key = (topic.name, partition)
        if not self._cluster.has(key):
            msg = f"topic {topic.name} has no partition {partition}"
            raise ValueError(msg)
        return key

    async def _resolve(self, key: Partition, start: Start) -> int:
        if start == "end":
            return (await self._cluster.ends([key]))[key]
        if start == "beginning":
            return (await self._cluster.begins([key]))[key]
        if isinstance(start, AtTime):
            return (await self._cluster.at_time([key], start.time_ms))[key]
        begins, ends = await asyncio.gather(self._cluster.begins([key]), self._cluster.ends([key]))
        return max(begins[key], min(start, ends[key]))

    def _hand_over(self, events: Events, _: Mapping[Partition, int]) -> None:
        if events:
            self._handler(events)
