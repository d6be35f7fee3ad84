import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from schemas.topics import Topic
from services.bus.in_flight_limit import InFlightLimit
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetcher import Events, Fetcher, OnMoved
from services.bus.read.record_decoder import RawDecoder, RecordDecoder
from services.bus.records import AtTime, Partition, RecordFilter, RecordHandler, StoredRecordHandler
from services.bus.settings import BusSettings

POLL_S: Final = 0.02
"""Seconds between two checks of a position. It is polled, because the fetcher does not signal it."""

POLLS_PER_END: Final = 50
"""Number of checks of a position after which the log's end is read again."""

Start = int | AtTime | Literal["end", "beginning"]


class TailReader:
    """Follows partitions, each from an offset or a time that the caller chooses.

    ``follow`` and the methods that return offsets wait until ``run`` has connected.

    If the log no longer has a partition's next offset, reading continues as ``Fetcher`` describes.

    Args:
        handler: Receives the records. It must return without waiting.
        record_filter: A record for which it returns false is skipped without decoding.
        include_newer: Whether the handler also gets an ``UnreadableRecord`` for each record that only a newer version
            of Railbus can decode.
        on_moved: Called as ``Fetcher`` describes.
    """

    def __init__(
        self,
        settings: BusSettings,
        *,
        handler: RecordHandler,
        record_filter: RecordFilter | None = None,
        include_newer: bool = False,
        in_flight_limit: InFlightLimit | None = None,
        on_moved: OnMoved | None = None,
    ) -> None:
        decoder = RecordDecoder(record_filter, include_newer=include_newer)
        self._open(settings, handler, decoder, in_flight_limit, on_moved)

    def _open(
        self,
        settings: BusSettings,
        handler: RecordHandler | StoredRecordHandler,
        decoder: RecordDecoder | RawDecoder,
        in_flight_limit: InFlightLimit | None,
        on_moved: OnMoved | None,
    ) -> None:
        self._handler: Callable[[Sequence[Any]], None] = handler
        self._cluster = Cluster(settings, "tail")
        self._fetcher = Fetcher(
            self._cluster,
            decoder=decoder,
            hand_over=self._hand_over,
            in_flight_limit=in_flight_limit,
            on_moved=on_moved,
        )
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled. Wait while the broker is unreachable, and log this once.

        Raises:
            UserError: The broker refuses the credentials, or does not let this user read.
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
        """Start to deliver a partition's records from ``start`` on, and return the next offset to be delivered.

        If the log does not have the offset ``start``, delivery starts at the nearest offset that it has. If the
        partition is followed already, delivery can only move back: a ``start`` after its next offset changes nothing.

        Raises:
            ValueError: The topic has no such partition.
        """
        key = await self._key(topic, partition)
        begin = await self._resolve(key, start)
        position = self._fetcher.position(key)
        if position is not None and position <= begin:
            return position
        self._fetcher.start_at({key: begin})
        return begin

    def rewind(self, offsets: Mapping[tuple[Topic, int], int]) -> None:
        """Move partitions back to their offsets in ``offsets``, so that the records from there on are delivered again.

        A partition that has not passed its offset stays where it is. All moves are done before the next delivery.
        """
        positions = {(topic.name, partition): offset for (topic, partition), offset in offsets.items()}
        behind = {key: offset for key, offset in positions.items() if (self._fetcher.position(key) or 0) > offset}
        if behind:
            self._fetcher.start_at(behind)

    async def unfollow(self, topic: Topic, partition: int) -> None:
        self._fetcher.drop([(topic.name, partition)])

    def position(self, topic: Topic, partition: int) -> int | None:
        """Return the partition's next offset to read; None if the partition is not followed."""
        return self._fetcher.position((topic.name, partition))

    async def read_through(self, ends: Mapping[tuple[Topic, int], int]) -> None:
        """Wait until each of these partitions has been read up to its offset in ``ends``.

        If the broker loses records meanwhile, so that a partition ends before that offset, wait for its new end.
        """
        left = dict(ends)
        for poll in itertools.count(1):
            left = {each: end for each, end in left.items() if (self.position(*each) or 0) < end}
            if not left:
                return
            await asyncio.sleep(POLL_S)
            if poll % POLLS_PER_END == 0:
                left = {each: min(end, await self.end_offset(*each)) for each, end in left.items()}

    async def begin_offset(self, topic: Topic, partition: int) -> int:
        return await self._resolve(await self._key(topic, partition), "beginning")

    async def end_offset(self, topic: Topic, partition: int) -> int:
        return await self._resolve(await self._key(topic, partition), "end")

    async def offset_at(self, topic: Topic, partition: int, time_ms: int) -> int:
        """Return the offset of the first record appended at or after ``time_ms``; the end offset if there is none."""
        return await self._resolve(await self._key(topic, partition), AtTime(time_ms))

    async def _key(self, topic: Topic, partition: int) -> Partition:
        await self._running.wait()
        await self._cluster.wait_for_topics([topic.name])
        key = (topic.name, partition)
        if not self._cluster.has(key):
            msg = f"topic {topic.name} has no partition {partition}"
            raise ValueError(msg)
        return key

    async def _resolve(self, key: Partition, start: Start) -> int:
        if start == "end":
            return (await self._cluster.end_offsets([key]))[key]
        if start == "beginning":
            return (await self._cluster.beginning_offsets([key]))[key]
        if isinstance(start, AtTime):
            return (await self._cluster.offsets_for_time([key], start.time_ms))[key]
        begins, ends = await asyncio.gather(self._cluster.beginning_offsets([key]), self._cluster.end_offsets([key]))
        return max(begins[key], min(start, ends[key]))

    def _hand_over(self, events: Events, _: Mapping[Partition, int]) -> None:
        if events:
            self._handler(events)


class RawTailReader(TailReader):
    """A ``TailReader`` that passes every record to its handler as it is on the log, not decoded."""

    def __init__(
        self,
        settings: BusSettings,
        *,
        handler: StoredRecordHandler,
        in_flight_limit: InFlightLimit | None = None,
        on_moved: OnMoved | None = None,
    ) -> None:
        self._open(settings, handler, RawDecoder(), in_flight_limit, on_moved)
