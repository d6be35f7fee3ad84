"""Find the records of one request on the log: its ``Request`` event, and its events on the stream log."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple

from schemas.ids import time_ms
from schemas.registry import read_kinds, reads
from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import STREAMS, TOPICS, Topic
from services.bus import BusSettings, Received, TailReader, UnreadableRecord
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent
from services.edge.log.request_index import RequestIndex
from services.edge.log.shared_scans import Scan, ScanPlace, ScanQueue, ScanTurn
from services.edge.log.unreadable import newer_version, takes_text_back

SKEW_MS: Final = 10_000
"""A look-up starts this many milliseconds before the time in the request id, because the clock of the edge that created
the id may have been ahead."""

LATE_MS: Final = 120_000
"""Usual maximum time between the creation of a request id and the append of the ``Request``, in milliseconds."""

OUTAGE_MS: Final = 3_600_000
"""The same maximum if the ``Request`` may have waited at its edge for a broker that was away."""

LOOKUP_TIMEOUT_S: Final = 60.0
"""Maximum time for one look-up, in seconds. About 100,000 records of a partition are read per second."""

READERS: Final = 4
"""Number of readers, and so the maximum number of partitions that are read at the same time."""

TENANT_READERS: Final = READERS - 1
"""Maximum number of readers that one tenant uses, so that another tenant's look-up can start at once."""

SLICE_S: Final = 0.1
"""Seconds that a reader works for one look-up while others wait. The look-up continues in its next turn."""

IDLE_SLICE_S: Final = 1.0
"""Used instead of ``SLICE_S`` as long as a turn's reader is still at its first offset, because a fetch may be slow."""

MAX_LOOKUPS: Final = 256
"""Maximum number of unfinished look-ups. Further ones are refused."""

MAX_TENANT_LOOKUPS: Final = MAX_LOOKUPS // 2
"""Maximum number of unfinished look-ups of one tenant."""

_POLL_S: Final = 0.005
_REQUEST_TOPICS: Final = tuple(topic for topic in TOPICS if Request in reads("edge").get(topic.name, ()))
"""The topics on which a ``Request`` event may be."""


class FoundRequest(NamedTuple):
    """A ``Request`` event, and the time at which the broker appended it, in milliseconds since the epoch."""

    event: Request
    timestamp_ms: int


class LookupReader:
    def __init__(self, settings: BusSettings) -> None:
        self._turn: ScanTurn | None = None
        self.tail = TailReader(settings, handler=self._take, record_filter=self._wants, include_newer=True)

    async def start(self, turn: ScanTurn) -> int:
        self._turn = turn
        return await self.tail.follow(turn.place.topic, turn.place.partition, turn.begin)

    def position(self, turn: ScanTurn) -> int:
        return self.tail.position(turn.place.topic, turn.place.partition) or turn.begin

    async def stop(self, turn: ScanTurn) -> None:
        await self.tail.unfollow(turn.place.topic, turn.place.partition)
        self._turn = None

    def _wants(self, kind: str, key: bytes | None) -> bool:
        return self._turn is not None and self._turn.wants(kind, key)

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        if self._turn is not None:
            self._turn.take([each for each in records if isinstance(each, Received) or takes_text_back(each)])


class LogLookup:
    """Finds requests and their events on the log."""

    def __init__(self, settings: BusSettings, index: RequestIndex) -> None:
        self._index = index
        self._readers = [LookupReader(settings) for _ in range(READERS)]
        self._scans = ScanQueue(TENANT_READERS)
        self._complete: dict[Scan, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        """Set when a reader may find a look-up to work for."""
        self._under_way: Counter[str] = Counter()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reader in self._readers:
                group.create_task(reader.tail.run())
                group.create_task(self._take_turns(reader))

    async def find_request(
        self, request_id: str, partition: int, tenant: str, *, late_ms: int = LATE_MS
    ) -> FoundRequest | None:
        """Find the ``Request`` event. Return None if it is not on the log.

        ``late_ms`` is the maximum time between the creation of the id and the append of the event, in milliseconds. A
        long time takes long to search.

        Raises:
            ApiError: 429, if ``tenant`` has too many unfinished look-ups; 503, if all tenants together have too many,
                or the look-up takes too long.
        """
        async with self._admitted(tenant):
            posted = self._index.request(request_id.encode())
            created_ms = time_ms(request_id)
            for topic in _REQUEST_TOPICS:
                if posted is not None and posted.topic == topic.name:
                    place = ScanPlace(topic, partition)
                    found = await self._search(request_id, place, tenant, posted.offset, posted.offset + 1)
                    if found is not None:
                        return found
            for topic in _REQUEST_TOPICS:
                begin = await self._offset_at(topic, partition, created_ms - SKEW_MS)
                end = await self._offset_at(topic, partition, created_ms + late_ms)
                found = await self._search(request_id, ScanPlace(topic, partition), tenant, begin, end)
                if found is not None:
                    return found
        return None

    async def history(
        self, request_id: str, partition: int, end: int, tenant: str, begin: int | None = None
    ) -> list[LoggedEvent]:
        """Return a request's events on the stream log with offsets below ``end``.

        ``begin`` is the offset of the first of these events, if it is known.

        Raises:
            ApiError: 429, if ``tenant`` has too many unfinished look-ups; 503, if the events cannot be read now.
        """
        async with self._admitted(tenant):
            if begin is None:
                begin = await self._offset_at(STREAMS, partition, time_ms(request_id) - SKEW_MS)
            found = await self._read(request_id, ScanPlace(STREAMS, partition), tenant, begin, end)
        if any(isinstance(record, UnreadableRecord) for record in found):
            raise newer_version()
        return [
            LoggedEvent(record.offset, record.event, record.timestamp_ms)
            for record in found
            if isinstance(record, Received) and isinstance(record.event, StreamEvent)
        ]

    async def end_offset(self, partition: int) -> int:
        with in_time():
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                return await self._readers[0].tail.end_offset(STREAMS, partition)

    async def _search(
        self, request_id: str, place: ScanPlace, tenant: str, begin: int, end: int
    ) -> FoundRequest | None:
        for record in await self._read(request_id, place, tenant, begin, end, first_only=True):
            if isinstance(record, Received) and isinstance(record.event, Request):
                self._index.note_request(request_id.encode(), place.topic.name, record.offset)
                return FoundRequest(record.event, record.timestamp_ms)
        return None

    async def _offset_at(self, topic: Topic, partition: int, log_ms: int) -> int:
        return await self._readers[0].tail.offset_at(topic, partition, max(0, log_ms))

    async def _read(
        self, request_id: str, place: ScanPlace, tenant: str, begin: int, end: int, *, first_only: bool = False
    ) -> list[Received | UnreadableRecord]:
        kinds = read_kinds("edge", place.topic)
        scan = Scan(tenant, place, request_id.encode(), kinds, begin, end, first_only=first_only)
        if scan.complete:
            return scan.found
        complete = self._complete[scan] = asyncio.get_running_loop().create_future()
        self._scans.put(scan)
        self._changed.set()
        try:
            await complete
        finally:
            del self._complete[scan]
            self._scans.remove(scan)
        return scan.found

    async def _take_turns(self, reader: LookupReader) -> None:
        while True:
            turn = self._scans.begin_turn()
            if turn is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                await self._read_turn(reader, turn)
            finally:
                await reader.stop(turn)
                self._scans.end_turn(turn)
                self._changed.set()

    async def _read_turn(self, reader: LookupReader, turn: ScanTurn) -> None:
        clock = asyncio.get_running_loop().time
        self._answer(self._scans.start(turn, await reader.start(turn)))
        began_s = clock()
        while not turn.over:
            # A turn without a record lasts longer. Otherwise, with slow fetches, all turns would end without one.
            is_up = clock() - began_s >= (SLICE_S if turn.progressed else IDLE_SLICE_S)
            if is_up and self._scans.others_wait():
                return
            await asyncio.sleep(_POLL_S)  # polling, because a reader does not signal when it passes an offset
            self._answer(self._scans.advance(turn, reader.position(turn)))

    def _answer(self, complete: Sequence[Scan]) -> None:
        for scan in complete:
            if not self._complete[scan].done():  # it is done if the look-up was just cancelled
                self._complete[scan].set_result(None)

    @asynccontextmanager
    async def _admitted(self, tenant: str) -> AsyncIterator[None]:
        if self._under_way.total() >= MAX_LOOKUPS:
            raise ApiError(503, "Too many streams are being resumed: try again.", code="busy", retry_after_s=1)
        if self._under_way[tenant] >= MAX_TENANT_LOOKUPS:
            raise ApiError(429, "You resume too many streams at once: try again.", code="busy", retry_after_s=1)
        self._under_way[tenant] += 1
        try:
            with in_time():
                async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                    yield
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]


@contextmanager
def in_time() -> Iterator[None]:
    """Convert a ``TimeoutError`` to an ``ApiError`` with status 503."""
    try:
        yield
    except TimeoutError:
        raise ApiError(503, "The log could not be read in time.", code="log_unavailable", retry_after_s=5) from None


def is_too_old(found: FoundRequest, readable_ms: int, log_ms: int) -> bool:
    """Return whether the answer can no longer be read.

    An answer can be read until ``readable_ms`` after the request's total deadline. ``log_ms`` is the broker's time now.
    """
    return log_ms > found.timestamp_ms + found.event.deadlines.total_ms + readable_ms
