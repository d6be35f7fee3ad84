"""Look-ups on the log for one request: the ``Request`` event, and its history on the stream log."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, NamedTuple

from schemas.ids import time_ms
from schemas.registry import read_kinds, reads
from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import STREAMS, TOPICS, Topic
from services.bus import AtTime, BusSettings, Received, TailReader, UnreadableRecord
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent
from services.edge.log.request_index import RequestIndex
from services.edge.log.unreadable import newer_version, takes_text_back
from services.processor.fair_queue import FairQueue

SKEW_MS: Final = 10_000
"""How far the clock behind a request id may run ahead of the broker's: a look-up starts this much earlier."""

LATE_MS: Final = 120_000
"""Longest time between the creation of a request id and its record on the log."""

LOOKUP_TIMEOUT_S: Final = 60.0
"""Longest time for one look-up; a partition replays about 100,000 records a second."""

READERS: Final = 4
"""Most look-ups that read at once."""

TENANT_READERS: Final = READERS - 1
"""Most of them for one tenant, so that another one's look-up can begin at once."""

SLICE_S: Final = 0.1
"""How long a look-up reads while others wait; then it waits for its next turn and continues at the same offset."""

MAX_LOOKUPS: Final = 256
"""Most look-ups that read or wait; further ones are refused."""

MAX_TENANT_LOOKUPS: Final = MAX_LOOKUPS // 2
"""The same for one tenant."""

_POLL_S: Final = 0.005
_REQUEST_TOPICS: Final = tuple(topic for topic in TOPICS if Request in reads("edge").get(topic.name, ()))
"""The topics that may hold the ``Request`` event."""


class LookupTarget(NamedTuple):
    """What a look-up searches for: records of this request and these kinds, in this partition before ``end``."""

    request_id: str
    kinds: frozenset[str]
    topic: Topic
    partition: int
    end: int


class FoundRequest(NamedTuple):
    """A ``Request``, and when the broker appended it, by the broker's clock."""

    event: Request
    timestamp_ms: int


class LookupReader:
    """One tail reader, used by one look-up at a time."""

    def __init__(self, settings: BusSettings) -> None:
        self._found: list[Received | UnreadableRecord] = []
        self._key = b""
        self._kinds: frozenset[str] = frozenset()
        self.tail = TailReader(settings, handler=self._take, record_filter=self._wants, include_newer=True)

    async def read(
        self,
        target: LookupTarget,
        start: int | AtTime,
        found: list[Received | UnreadableRecord],
        enough: Callable[[], object],
    ) -> int:
        """Add the records from ``start`` on to ``found`` until they suffice; return the offset to continue at."""
        self._key, self._kinds, self._found = target.request_id.encode(), target.kinds, found
        place = (target.topic, target.partition)
        position = await self.tail.follow(*place, start)
        try:
            # A reader has no event for passing an offset, hence the polling.
            while position < target.end and not enough():
                await asyncio.sleep(_POLL_S)
                position = self.tail.position(*place) or position
        finally:
            await self.tail.unfollow(*place)
            self._found = []
        return position

    def _wants(self, kind: str, key: bytes | None) -> bool:
        return key == self._key and kind in self._kinds

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        self._found.extend(record for record in records if isinstance(record, Received) or takes_text_back(record))


class LogLookup:
    """A pool of readers that find requests and their histories on the log; tenants take short turns.

    Args:
        settings: How to reach the broker.
        index: Where recent requests are.
    """

    def __init__(self, settings: BusSettings, index: RequestIndex) -> None:
        self._index = index
        self._readers = [LookupReader(settings) for _ in range(READERS)]
        self._turns = ReaderTurns(self._readers, TENANT_READERS)
        self._under_way: Counter[str] = Counter()

    async def run(self) -> None:
        """Keep the readers connected until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reader in self._readers:
                group.create_task(reader.tail.run())

    async def find_request(self, request_id: str, partition: int, tenant: str) -> FoundRequest | None:
        """Find the ``Request`` event; return None when it is not on the log."""
        async with self._admitted(tenant):
            posted = self._index.request(request_id.encode())
            created_ms = time_ms(request_id)
            for topic in _REQUEST_TOPICS:
                kinds = read_kinds("edge", topic)
                if posted is not None and posted.topic == topic.name:
                    target = LookupTarget(request_id, kinds, topic, partition, posted.offset + 1)
                    found = await self._search(target, posted.offset, tenant)
                    if found is not None:
                        return found
            for topic in _REQUEST_TOPICS:
                end = await self._readers[0].tail.offset_at(topic, partition, created_ms + LATE_MS)
                target = LookupTarget(request_id, read_kinds("edge", topic), topic, partition, end)
                found = await self._search(target, _begin(request_id), tenant)
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
            ApiError: 503, if one of them may take text back and cannot be read.
        """
        target = LookupTarget(request_id, read_kinds("edge", STREAMS), STREAMS, partition, end)
        async with self._admitted(tenant):
            found = await self._scan(target, _begin(request_id) if begin is None else begin, tenant)
        if any(isinstance(record, UnreadableRecord) and record.offset < end for record in found):
            raise newer_version()
        return [
            LoggedEvent(record.offset, record.event, record.timestamp_ms)
            for record in found
            if isinstance(record, Received) and record.offset < end and isinstance(record.event, StreamEvent)
        ]

    async def end_offset(self, partition: int) -> int:
        """Return the offset of the next record of the stream log's partition."""
        with _in_time():
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                return await self._readers[0].tail.end_offset(STREAMS, partition)

    async def _search(self, target: LookupTarget, start: int | AtTime, tenant: str) -> FoundRequest | None:
        for record in await self._scan(target, start, tenant, first_only=True):
            if isinstance(record, Received) and isinstance(record.event, Request):
                self._index.note_request(target.request_id.encode(), target.topic.name, record.offset)
                return FoundRequest(record.event, record.timestamp_ms)
        return None

    async def _scan(
        self, target: LookupTarget, start: int | AtTime, tenant: str, *, first_only: bool = False
    ) -> list[Received | UnreadableRecord]:
        """Read up to the target's end, in slices while others wait."""
        found: list[Received | UnreadableRecord] = []
        position: int | AtTime = start
        while not isinstance(position, int) or (position < target.end and not (first_only and found)):
            async with self._turns.turn(tenant) as reader:
                enough = partial(self._enough, found if first_only else (), asyncio.get_running_loop().time() + SLICE_S)
                position = await reader.read(target, position, found, enough)
        return found

    def _enough(self, wanted: Sequence[Received | UnreadableRecord], turn_ends_s: float) -> bool:
        """Return whether a look-up should stop: it found its records, or its turn is over and another one waits."""
        return bool(wanted) or bool(self._turns.waiting and asyncio.get_running_loop().time() >= turn_ends_s)

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


class ReaderTurns:
    """Lends readers: tenants take turns, and each has at most ``per_tenant`` readers. The caller bounds who waits."""

    def __init__(self, readers: Sequence[LookupReader], per_tenant: int) -> None:
        self._free = list(readers)
        self._per_tenant = per_tenant
        self._lent: Counter[str] = Counter()
        self._queue: FairQueue[asyncio.Future[LookupReader]] = FairQueue()

    @property
    def waiting(self) -> int:
        """How many look-ups wait for a reader."""
        return len(self._queue)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[LookupReader]:
        """Wait for a reader, and hold it until the block ends."""
        mine: asyncio.Future[LookupReader] = asyncio.get_running_loop().create_future()
        self._queue.put(tenant, mine)
        self._hand_out()
        try:
            yield await mine
        finally:
            if mine.done() and not mine.cancelled():
                self._free.append(mine.result())
                self._lent[tenant] -= 1
                if not self._lent[tenant]:
                    del self._lent[tenant]
            else:
                mine.cancel()
                self._queue.retain(lambda other: other is not mine)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._free:
            full = {tenant for tenant, count in self._lent.items() if count >= self._per_tenant}
            turn = self._queue.get(full)
            if turn is None:
                return
            tenant, waiting = turn
            if not waiting.done():  # whoever was cancelled waits no more
                self._lent[tenant] += 1
                waiting.set_result(self._free.pop())


def _begin(request_id: str) -> AtTime:
    return AtTime(max(0, time_ms(request_id) - SKEW_MS))


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ApiError(503, "The log could not be read in time.", code="log_unavailable", retry_after_s=5) from None


def is_too_old(found: FoundRequest, readable_ms: int, log_ms: int) -> bool:
    """Return whether the answer may no longer be read: that ends ``readable_ms`` after the total deadline.

    Args:
        found: The request, with the broker's time of it.
        readable_ms: How long.
        log_ms: The broker's time now.
    """
    return log_ms > found.timestamp_ms + found.event.deadlines.total_ms + readable_ms
