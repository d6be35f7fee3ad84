"""Look-ups on the log for one request: the ``Request`` event, and its history on the stream log."""

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
"""A look-up starts this much before the time in a request id, because that clock may be ahead of the broker's."""

LATE_MS: Final = 120_000
"""Longest time between the creation of a request id and its record on the log."""

LOOKUP_TIMEOUT_S: Final = 60.0
"""Longest time for one look-up; a partition replays about 100,000 records a second."""

READERS: Final = 4
"""Maximum number of partitions read at once."""

TENANT_READERS: Final = READERS - 1
"""Maximum number of simultaneous turns of one tenant, so that another tenant's look-up can begin immediately."""

SLICE_S: Final = 0.1
"""How long a turn at reading lasts while others wait; a look-up continues at the same offset in its next turn."""

IDLE_SLICE_S: Final = 1.0
"""Length of a turn, like ``SLICE_S``, while no record has arrived in it yet."""

MAX_LOOKUPS: Final = 256
"""Maximum number of look-ups that read or wait. Further ones are refused."""

MAX_TENANT_LOOKUPS: Final = MAX_LOOKUPS // 2
"""Maximum number of look-ups of one tenant that read or wait."""

_POLL_S: Final = 0.005
_REQUEST_TOPICS: Final = tuple(topic for topic in TOPICS if Request in reads("edge").get(topic.name, ()))
"""The topics that may hold the ``Request`` event."""


class FoundRequest(NamedTuple):
    """A ``Request``, and when the broker appended it, by the broker's clock."""

    event: Request
    timestamp_ms: int


class LookupReader:
    """One tail reader, for one turn at a time."""

    def __init__(self, settings: BusSettings) -> None:
        self._turn: ScanTurn | None = None
        self.tail = TailReader(settings, handler=self._take, record_filter=self._wants, include_newer=True)

    async def start(self, turn: ScanTurn) -> int:
        """Begin to read for the look-ups of a turn; return the offset of the first record."""
        self._turn = turn
        return await self.tail.follow(turn.place.topic, turn.place.partition, turn.begin)

    def position(self, turn: ScanTurn) -> int:
        """Return the offset of the next record."""
        return self.tail.position(turn.place.topic, turn.place.partition) or turn.begin

    async def stop(self, turn: ScanTurn) -> None:
        """Read no more."""
        await self.tail.unfollow(turn.place.topic, turn.place.partition)
        self._turn = None

    def _wants(self, kind: str, key: bytes | None) -> bool:
        return self._turn is not None and self._turn.wants(kind, key)

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        if self._turn is not None:
            self._turn.take([each for each in records if isinstance(each, Received) or takes_text_back(each)])


class LogLookup:
    """A pool of readers that find requests and their histories on the log.

    Tenants take short turns, and every look-up that needs a record gets it when it is read for any: see ``ScanQueue``.

    Args:
        settings: How to reach the broker.
        index: Where recent requests are.
    """

    def __init__(self, settings: BusSettings, index: RequestIndex) -> None:
        self._index = index
        self._readers = [LookupReader(settings) for _ in range(READERS)]
        self._scans = ScanQueue(TENANT_READERS)
        self._complete: dict[Scan, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        """Set when a turn may begin."""
        self._under_way: Counter[str] = Counter()

    async def run(self) -> None:
        """Keep the readers connected, and let them read for the look-ups, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reader in self._readers:
                group.create_task(reader.tail.run())
                group.create_task(self._take_turns(reader))

    async def find_request(self, request_id: str, partition: int, tenant: str) -> FoundRequest | None:
        """Find the ``Request`` event; return None when it is not on the log."""
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
                end = await self._offset_at(topic, partition, created_ms + LATE_MS)
                found = await self._search(request_id, ScanPlace(topic, partition), tenant, begin, end)
                if found is not None:
                    return found
        return None

    async def history(
        self, request_id: str, partition: int, end: int, tenant: str, begin: int | None = None
    ) -> list[LoggedEvent]:
        """Read a request's events on the stream log before the offset ``end``.

        Args:
            request_id: The request.
            partition: Its partition.
            end: The offset to read to.
            tenant: Tenants take turns at reading: the look-up waits for this tenant's turn.
            begin: The offset of its first event, if it is known.

        Raises:
            ApiError: 503, if one of the events may take text back and cannot be read.
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
        """Return the offset of the next record of the stream log's partition."""
        with _in_time():
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
        """Wait until the readers have passed the request's records, or the first one, and return them."""
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
            # A turn that has not read anything yet waits longer: where every fetch is slow, all would else end unused.
            is_up = clock() - began_s >= (SLICE_S if turn.progressed else IDLE_SLICE_S)
            if is_up and self._scans.others_wait():
                return
            await asyncio.sleep(_POLL_S)  # a reader has no event for passing an offset
            self._answer(self._scans.advance(turn, reader.position(turn)))

    def _answer(self, complete: Sequence[Scan]) -> None:
        for scan in complete:
            if not self._complete[scan].done():  # it may just have been cancelled
                self._complete[scan].set_result(None)

    @asynccontextmanager
    async def _admitted(self, tenant: str) -> AsyncIterator[None]:
        """Count one look-up.

        Raises:
            ApiError: There are too many, or it takes too long.
        """
        if self._under_way.total() >= MAX_LOOKUPS:
            raise ApiError(503, "Too many streams are being resumed: try again.", code="busy", retry_after_s=1)
        if self._under_way[tenant] >= MAX_TENANT_LOOKUPS:
            raise ApiError(429, "You resume too many streams at once: try again.", code="busy", retry_after_s=1)
        self._under_way[tenant] += 1
        try:
            with _in_time():
                async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                    yield
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ApiError(503, "The log could not be read in time.", code="log_unavailable", retry_after_s=5) from None


def is_too_old(found: FoundRequest, readable_ms: int, log_ms: int) -> bool:
    """Return whether it is too late to read the answer: more than ``readable_ms`` after the total deadline.

    Args:
        found: The request, with the time at which the broker appended it.
        readable_ms: How long an answer can be read after its total deadline.
        log_ms: The broker's time now.
    """
    return log_ms > found.timestamp_ms + found.event.deadlines.total_ms + readable_ms
