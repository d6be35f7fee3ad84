"""Look-ups on the log for one request: the ``Request`` event, and its history on the stream log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from schemas.ids import time_ms
from schemas.registry import read_kinds, reads
from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import STREAMS, TOPICS, Topic
from services.bus import AtTime, BusSettings, Received, TailReader, UnreadableRecord
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent

SKEW_MS: Final = 10_000
"""How far the clock behind a request id may run ahead of the broker's: a look-up starts this much earlier."""

LATE_MS: Final = 120_000
"""Longest time between the creation of a request id and its record on the log."""

LOOKUP_TIMEOUT_S: Final = 60.0
"""Longest time for one look-up; a partition replays about 100,000 records a second."""

READERS: Final = 4
"""Most look-ups at once; further ones wait."""

MAX_WAITING: Final = 256
"""Most look-ups that wait; further ones are refused."""

_POLL_S: Final = 0.005
_REQUEST_TOPICS: Final = tuple(topic for topic in TOPICS if Request in reads("edge").get(topic.name, ()))
"""The topics that may hold the ``Request`` event."""


class _LookupReader:
    """One tail reader, used by one look-up at a time."""

    def __init__(self, settings: BusSettings) -> None:
        self.found: list[Received] = []
        self._key = b""
        self._kinds: frozenset[str] = frozenset()
        self.reader = TailReader(settings, handler=self._take, record_filter=self._wants)

    def look_for(self, request_id: str, kinds: frozenset[str]) -> None:
        """Forget what was found; collect only records of this request and these kinds from now on."""
        self.found = []
        self._key = request_id.encode()
        self._kinds = kinds

    def _wants(self, kind: str, key: bytes | None) -> bool:
        return key == self._key and kind in self._kinds

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        self.found.extend(record for record in records if isinstance(record, Received))


class LogLookup:
    """A pool of readers that find requests and their histories on the log."""

    def __init__(self, settings: BusSettings) -> None:
        self._readers = [_LookupReader(settings) for _ in range(READERS)]
        self._free: asyncio.Queue[_LookupReader] = asyncio.Queue()
        self._waiting = 0
        for lookup in self._readers:
            self._free.put_nowait(lookup)

    async def run(self) -> None:
        """Keep the readers connected until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lookup in self._readers:
                group.create_task(lookup.reader.run())

    async def find_request(self, request_id: str, partition: int) -> Request | None:
        """Find the ``Request`` event; return None when it is not on the log."""
        created_ms = time_ms(request_id)
        async with self._lent() as lookup:
            for topic in _REQUEST_TOPICS:
                end = await lookup.reader.offset_at(topic, partition, created_ms + LATE_MS)
                lookup.look_for(request_id, read_kinds("edge", topic))
                await _read(lookup, topic, partition, end, lambda: bool(lookup.found), created_ms)
                for record in lookup.found:
                    if isinstance(record.event, Request):
                        return record.event
        return None

    async def history(self, request_id: str, partition: int, end: int) -> list[LoggedEvent]:
        """Read a request's events on the stream log before the offset ``end``."""
        async with self._lent() as lookup:
            lookup.look_for(request_id, read_kinds("edge", STREAMS))
            await _read(lookup, STREAMS, partition, end, lambda: False, time_ms(request_id))
            return [
                LoggedEvent(record.offset, record.event, record.timestamp_ms)
                for record in lookup.found
                if record.offset < end and isinstance(record.event, StreamEvent)
            ]

    async def end_offset(self, partition: int) -> int:
        """Return the offset of the next record of the stream log's partition."""
        async with self._lent() as lookup:
            return await lookup.reader.end_offset(STREAMS, partition)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[_LookupReader]:
        if self._waiting >= MAX_WAITING:
            raise ApiError(503, "Too many streams are being resumed: try again.", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                lookup = await self._free.get()
                try:
                    yield lookup
                finally:
                    self._free.put_nowait(lookup)
        except TimeoutError:
            raise ApiError(503, "The log could not be read in time.", code="log_unavailable", retry_after_s=5) from None
        finally:
            self._waiting -= 1


async def _read(
    lookup: _LookupReader, topic: Topic, partition: int, end: int, enough: Callable[[], bool], created_ms: int
) -> None:
    """Read from shortly before the request's creation up to the offset ``end``."""
    reader = lookup.reader
    await reader.follow(topic, partition, AtTime(max(0, created_ms - SKEW_MS)))
    try:
        # A reader has no event for passing an offset, hence the polling.
        while not enough() and (reader.position(topic, partition) or 0) < end:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
    finally:
        await reader.unfollow(topic, partition)
