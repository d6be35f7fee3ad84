"""Following partitions by choice: no group, so no rebalance ever interrupts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas.topics import Topic
from services.bus.contact import backoff_s, contact_with, wait_for_broker
from services.bus.intake import Intake
from services.bus.kafka import interrupt_fetch, make_consumer, named, put_away_consumer
from services.bus.loop import consume
from services.bus.records import AtTime, Handler, Received, Unread, Wants
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.runtime.logging import logger

_log = logger("bus")

Start = int | AtTime | Literal["end", "beginning"]


class TailReader:
    """Follows the partitions it is told to, each from where it is told.

    Args:
        settings: Where and how.
        handler: See ``services.bus.records.Handler``.
        wants: Records it says no to are passed over without decoding.
        room: Backpressure; see ``Room``.

    Offsets are asked for on a connection of their own, because a broker answers one connection's requests in order and
    the other one waits for records most of the time.
    """

    def __init__(
        self, settings: BusSettings, *, handler: Handler, wants: Wants | None = None, room: Room | None = None
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._room = room
        self._intake = Intake(wants)
        self._next: dict[tuple[str, int], int] = {}
        self._consumer: Any = None
        self._lookup: Any = None
        self._running = asyncio.Event()
        self._apply_due = False

    async def run(self) -> None:
        """Reads until cancelled; while the broker is away it waits, says so once, and goes on.

        Raises:
            UserError: The broker refuses the credentials.
        """
        attempt = 0
        while True:
            await wait_for_broker(self._settings)
            try:
                await self._session()
            except KafkaError as error:
                contact_with(self._settings).lost(error)
                _log.warning("following begins again after %r", error)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1

    async def follow(self, topic: Topic, partition: int, start: Start) -> int:
        """Begins to deliver a partition's records; waits until ``run`` has connected.

        Returns:
            The offset from which every record is delivered. An offset the broker no longer has, or does not have yet,
            is moved to the nearest it has. A partition that is followed already stays where it is, unless ``start`` is
            earlier: then it goes back, and what lies between is delivered again.
        """
        await self._running.wait()
        tp = TopicPartition(topic.name, partition)
        begin = await self._resolve(tp, start)
        key = (topic.name, partition)
        begin = min(begin, self._next.get(key, begin))
        if self._next.get(key) != begin:
            self._next[key] = begin
            self._apply_soon()
        return begin

    async def unfollow(self, topic: Topic, partition: int) -> None:
        """Ends delivery at once; a partition that is not followed is ignored."""
        if self._next.pop((topic.name, partition), None) is not None:
            self._apply_soon()

    def position(self, topic: Topic, partition: int) -> int | None:
        """The offset of the next record to come, wanted or not; None when the partition is not followed."""
        return self._next.get((topic.name, partition))

    async def begin_offset(self, topic: Topic, partition: int) -> int:
        """The offset of the oldest record the broker still has; the end where it has none."""
        await self._running.wait()
        return await self._resolve(TopicPartition(topic.name, partition), "beginning")

    async def end_offset(self, topic: Topic, partition: int) -> int:
        """The offset the next record will get."""
        await self._running.wait()
        tp = TopicPartition(topic.name, partition)
        return int((await self._lookup.end_offsets([tp]))[tp])

    async def offset_at(self, topic: Topic, partition: int, time_ms: int) -> int:
        """The first record whose time is not before ``time_ms`` (milliseconds since the epoch); the end if none is."""
        await self._running.wait()
        return await self._resolve(TopicPartition(topic.name, partition), AtTime(time_ms))

    async def _resolve(self, tp: Any, start: Start) -> int:
        if start == "end":
            return int((await self._lookup.end_offsets([tp]))[tp])
        if start == "beginning":
            return int((await self._lookup.beginning_offsets([tp]))[tp])
        if isinstance(start, AtTime):
            found = (await self._lookup.offsets_for_times({tp: start.time_ms}))[tp]
            return await self._resolve(tp, "end") if found is None else int(found.offset)
        first, end = await asyncio.gather(self._resolve(tp, "beginning"), self._resolve(tp, "end"))
        return max(first, min(start, end))

    def _apply_soon(self) -> None:
        """Changes of one step of the event loop become one change of assignment."""
        if not self._apply_due:
            self._apply_due = True
            asyncio.get_running_loop().call_soon(self._apply)

    def _apply(self) -> None:
        """No await: aiokafka forgets positions when the assignment changes, and takes ours before it reads again."""
        self._apply_due = False
        if self._consumer is None:
            return
        partitions = named(self._next)
        if not partitions:
            self._consumer.unsubscribe()
            return
        self._consumer.assign(partitions)
        for tp in partitions:
            self._consumer.seek(tp, self._next[tp.topic, tp.partition])
        interrupt_fetch(self._consumer)

    async def _session(self) -> None:
        """One pair of consumers' life; positions outlive it."""
        consumer = make_consumer(self._settings, "tail")
        lookup = make_consumer(self._settings, "tail-offsets")
        try:
            await lookup.start()
            await consumer.start()
            self._consumer, self._lookup = consumer, lookup
            if self._next:
                self._apply()
            self._running.set()
            await consume(
                consumer,
                intake=self._intake,
                handler=self._handler,
                room=self._room,
                delivered=self._delivered,
                settled=_always,
            )
        finally:
            self._running.clear()
            self._consumer = None
            await put_away_consumer(consumer)
            await put_away_consumer(lookup)

    def _delivered(self, progress: Mapping[tuple[str, int], tuple[int, Sequence[Received | Unread]]]) -> None:
        for key, (next_offset, _) in progress.items():
            if key in self._next:
                self._next[key] = next_offset


async def _always() -> bool:
    return True
