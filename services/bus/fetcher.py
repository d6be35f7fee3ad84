"""The one loop that reads, shared by group members and followers. It hands records over and never awaits the work.

For each broker that leads one of our partitions there is one connection with one fetch on it, which the broker answers
when a record is there. The answer is unpacked, decoded and handed over in the same step of the event loop, and the next
fetch goes out. aiokafka's consumer would do the same with four tasks and six waits for each answer; on a stream of
tokens that is most of the cost of reading.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)

from services.bus.cluster import Cluster
from services.bus.contact import backoff_s
from services.bus.fetch_wire import Part, Partition, decode
from services.bus.intake import Intake
from services.bus.line import Line
from services.bus.records import Received, Unread
from services.bus.room import Room
from services.bus.unpack import Item, unpack
from services.runtime.errors import UserError, first_of
from services.runtime.logging import logger

_log = logger("bus")

MAX_RECORDS: Final = 500
"""Most records looked at before other tasks get their turn, and most handed over in one call."""

Events = Sequence[Received | Unread]
HandOver = Callable[[Events, Mapping[Partition, int]], None]
"""Gets events, in order within a partition, and of each partition the next offset. What it raises ends the reader."""

OnMoved = Callable[[Partition, int, int], None]
"""Gets a partition, the offset that was wanted there and is not, and the one that is read instead."""

OVERLAP_MS: Final = 10_000
"""How far a broker's clock may have been set back by the crash that cost it the end of a log."""


class _Spot:
    """Where reading of one partition stands. Another spot in its place means: it was moved meanwhile."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Fetcher:
    """Reads partitions from where it is told.

    Args:
        cluster: Knows the leaders; open.
        intake: Filters and decodes.
        hand_over: See ``HandOver``.
        room: Backpressure; see ``Room``.
        on_moved: See ``OnMoved``; called before anything is handed over from the new offset. A reader that keeps state
            of the partition must start anew then: what it knows of the log is not all on the log, or has a gap.

    Where an offset is gone, nothing that the broker still has is skipped:

    - Before the log's beginning (retention came first), reading goes on at the oldest record.
    - Beyond the log's end (the broker lost its tail, as after a power failure), offsets are given a second time, and
      the log's end may be past some already. Reading goes on at the first record appended after the last one that was
      read here, or ``OVERLAP_MS`` before that, which may be read again; where none was read here, at the oldest record.
      When the log has grown past the wanted offset before it is asked for, the broker tells nobody, nor can we.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        intake: Intake,
        hand_over: HandOver,
        room: Room | None = None,
        on_moved: OnMoved | None = None,
    ) -> None:
        self._cluster = cluster
        self._intake = intake
        self._hand_over = hand_over
        self._room = room
        self._on_moved = on_moved
        self._read_ms: dict[Partition, int] = {}  # time of the last record read, also where it is read no longer
        self._spots: dict[Partition, _Spot] = {}
        self._lines: dict[int, Line] = {}
        self._changed = asyncio.Event()

    def place(self, offsets: Mapping[Partition, int]) -> None:
        """Reads these partitions from these offsets on, at once; others go on as they are."""
        for partition, offset in offsets.items():
            self._spots[partition] = _Spot(offset)
        for node in {self._cluster.leader(partition) for partition in offsets}:
            if node is not None and node in self._lines:
                self._lines[node].interrupt()
        self._changed.set()

    def drop(self, partitions: Sequence[Partition] | None = None) -> None:
        """Nothing more of these (or of all) is handed over."""
        for partition in tuple(self._spots) if partitions is None else partitions:
            self._spots.pop(partition, None)

    def position(self, partition: Partition) -> int | None:
        """The offset of the next record to come; None when the partition is not read."""
        spot = self._spots.get(partition)
        return None if spot is None else spot.offset

    async def run(self) -> None:
        """Reads until cancelled; while a broker is away it waits and goes on where it was.

        Raises:
            UserError: The broker does not let us read.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for attempt in itertools.count():
                    self._changed.clear()
                    leaders = {self._cluster.leader(partition) for partition in self._spots}
                    for node in leaders:
                        if node is None or node in self._lines:
                            continue
                        self._lines[node] = line = Line(self._cluster, node)
                        tasks.create_task(self._read(node, line), name=f"fetch-{node}")
                    if None in leaders:
                        await self._cluster.refresh()
                        await asyncio.sleep(backoff_s(min(attempt, 3)))
                    else:
                        await self._changed.wait()
        except BaseExceptionGroup as group:
            raise first_of(group) from None

    async def _read(self, node: int, line: Line) -> None:
        """One broker's partitions, until it leads none of ours."""
        failures = 0
        try:
            for turn in itertools.count():
                if self._room is not None:
                    await self._room.wait()
                spots = {p: spot for p, spot in self._spots.items() if self._cluster.leader(p) == node}
                if not spots:
                    return
                try:
                    answer = await line.fetch(_in_turn(spots, turn))
                except IncompatibleBrokerVersion as error:
                    raise UserError(f"{error}: Apache Kafka 0.11 or newer is needed") from None
                except (KafkaError, OSError, TimeoutError):
                    line.close()
                    await asyncio.sleep(backoff_s(failures))
                    failures += 1
                    await self._refresh()
                    continue
                if answer is not None:
                    failures = 0
                    await self._take(decode(answer), spots)
        finally:
            line.close()
            del self._lines[node]
            self._changed.set()

    async def _take(self, parts: Iterator[Part], spots: Mapping[Partition, _Spot]) -> None:
        """Hands one answer over, in slices that the handler has room for."""
        troubles: dict[Partition, int] = {}
        items = self._items(parts, spots, troubles)
        while self._slice(items):
            await asyncio.sleep(0)
            if self._room is not None:
                await self._room.wait()
        if troubles:
            await self._mend(troubles, spots)

    def _items(
        self, parts: Iterator[Part], spots: Mapping[Partition, _Spot], troubles: dict[Partition, int]
    ) -> Iterator[tuple[Partition, _Spot, Item]]:
        for part in parts:
            partition = (part.topic, part.partition)
            if part.error:
                troubles[partition] = part.error
            elif part.records and partition in spots:
                spot = spots[partition]
                for item in unpack(part.records, spot.offset):
                    yield partition, spot, item

    def _slice(self, items: Iterator[tuple[Partition, _Spot, Item]]) -> bool:
        """Hands over the next records; whether there may be more."""
        most = MAX_RECORDS if self._room is None else max(1, min(MAX_RECORDS, self._room.free))
        events: list[Received | Unread] = []
        progress: dict[Partition, int] = {}
        looked_at = 0
        for partition, spot, item in items:
            if self._spots.get(partition) is not spot:
                continue
            spot.offset = progress[partition] = item.next_offset
            if item.record is not None:
                self._read_ms[partition] = item.record.timestamp
            looked_at += 1
            event = self._intake.take(partition, item)
            if event is not None:
                events.append(event)
            if looked_at >= MAX_RECORDS or len(events) >= most:
                break
        self._intake.count()
        if progress:
            self._hand_over(events, progress)
        return looked_at >= MAX_RECORDS or len(events) >= most

    async def _mend(self, troubles: Mapping[Partition, int], spots: Mapping[Partition, _Spot]) -> None:
        """Moves positions that are gone to where the log goes on, and looks for leaders that have moved."""
        gone = {p: spots[p].offset for p, code in troubles.items() if for_code(code) is OffsetOutOfRangeError}
        for partition, begin in (await self._resume(gone)).items():
            if self._spots.get(partition) is spots[partition]:
                _log.warning("%s[%d]: offset %d is gone; reading on at %d", *partition, gone[partition], begin)
                self._spots[partition] = _Spot(begin)
                if self._on_moved is not None:  # it may have the partition placed elsewhere
                    self._on_moved(partition, gone[partition], begin)
        others = {for_code(code) for partition, code in troubles.items() if partition not in gone}
        if TopicAuthorizationFailedError in others:
            raise UserError(f"the broker does not let this user read all of {sorted({t for t, _ in troubles})}")
        if others:
            await asyncio.sleep(backoff_s(0))
            await self._refresh()

    async def _resume(self, gone: Mapping[Partition, int]) -> dict[Partition, int]:
        """Where to read on; see the class."""
        if not gone:
            return {}
        starts = await self._cluster.begins(gone)
        for partition, begin in tuple(starts.items()):
            read_ms = self._read_ms.get(partition)
            if gone[partition] > begin and read_ms is not None:
                starts |= await self._cluster.at_time([partition], read_ms - OVERLAP_MS)
        return starts

    async def _refresh(self) -> None:
        await self._cluster.refresh()
        self._changed.set()


def _in_turn(spots: Mapping[Partition, _Spot], turn: int) -> dict[Partition, int]:
    """What to ask for, each time beginning with another partition: a broker fills its answer in the order asked."""
    partitions = list(spots)
    first = turn % len(partitions)
    return {partition: spots[partition].offset for partition in partitions[first:] + partitions[:first]}
