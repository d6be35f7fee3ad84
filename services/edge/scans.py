"""Reading a stretch of the log for one request: to find it, and to know its history."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from schemas.ids import time_ms
from schemas.registry import read_kinds, reads
from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import STREAMS, TOPICS, Topic
from services.bus import AtTime, BusSettings, Received, TailReader, Unread
from services.edge.errors import ApiError
from services.edge.session import Logged

SKEW_MS: Final = 10_000
"""How far the clock of whoever made a request id may be ahead of the broker's: reading begins so long before."""

LATE_MS: Final = 120_000
"""A request is on the log at most this long after its id was made."""

SCAN_S: Final = 60.0
"""Longest time for one stretch; a partition replays some 100,000 records a second."""

READERS: Final = 4
"""Most stretches read at once; further ones wait."""

MAX_WAITING: Final = 256
"""Most stretches that wait; further ones are refused."""

_POLL_S: Final = 0.005
_ASKED: Final = tuple(topic for topic in TOPICS if Request in reads("edge").get(topic.name, ()))
"""Where a request can stand that this edge or another took."""


class _Scanner:
    """One reader, lent to one stretch at a time."""

    def __init__(self, settings: BusSettings) -> None:
        self.found: list[Received] = []
        self._key = b""
        self._kinds: frozenset[str] = frozenset()
        self.reader = TailReader(settings, handler=self._take, wants=self._wants)

    def look_for(self, request_id: str, kinds: frozenset[str]) -> None:
        """Keep only these records from now on."""
        self.found = []
        self._key = request_id.encode()
        self._kinds = kinds

    def _wants(self, kind: str, key: bytes | None) -> bool:
        return key == self._key and kind in self._kinds

    def _take(self, records: Sequence[Received | Unread]) -> None:
        self.found.extend(record for record in records if isinstance(record, Received))


class Scans:
    """Looks requests up on the log."""

    def __init__(self, settings: BusSettings) -> None:
        self._scanners = [_Scanner(settings) for _ in range(READERS)]
        self._free: asyncio.Queue[_Scanner] = asyncio.Queue()
        self._waiting = 0
        for scanner in self._scanners:
            self._free.put_nowait(scanner)

    async def run(self) -> None:
        """Keep the readers connected until cancelled."""
        async with asyncio.TaskGroup() as group:
            for scanner in self._scanners:
                group.create_task(scanner.reader.run())

    async def request(self, request_id: str, partition: int) -> Request | None:
        """The request of that id; None when there is none on the log."""
        made_ms = time_ms(request_id)
        async with self._lent() as scanner:
            for topic in _ASKED:
                end = await scanner.reader.offset_at(topic, partition, made_ms + LATE_MS)
                scanner.look_for(request_id, read_kinds("edge", topic))
                await _read(scanner, topic, partition, end, lambda: bool(scanner.found), made_ms)
                for record in scanner.found:
                    if isinstance(record.event, Request):
                        return record.event
        return None

    async def history(self, request_id: str, partition: int, end: int) -> list[Logged]:
        """What the stream log says of a request before the offset ``end``."""
        async with self._lent() as scanner:
            scanner.look_for(request_id, read_kinds("edge", STREAMS))
            await _read(scanner, STREAMS, partition, end, lambda: False, time_ms(request_id))
            return [
                Logged(record.offset, record.event)
                for record in scanner.found
                if record.offset < end and isinstance(record.event, StreamEvent)
            ]

    async def end_offset(self, partition: int) -> int:
        """The offset the stream log's next record will get."""
        async with self._lent() as scanner:
            return await scanner.reader.end_offset(STREAMS, partition)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[_Scanner]:
        if self._waiting >= MAX_WAITING:
            raise ApiError(503, "Too many streams are being resumed: try again.", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            async with asyncio.timeout(SCAN_S):
                scanner = await self._free.get()
                try:
                    yield scanner
                finally:
                    self._free.put_nowait(scanner)
        except TimeoutError:
            raise ApiError(503, "The log could not be read in time.", code="log_unavailable", retry_after_s=5) from None
        finally:
            self._waiting -= 1


async def _read(
    scanner: _Scanner, topic: Topic, partition: int, end: int, enough: Callable[[], bool], made_ms: int
) -> None:
    """Read from shortly before the request's time up to the offset ``end``."""
    reader = scanner.reader
    await reader.follow(topic, partition, AtTime(max(0, made_ms - SKEW_MS)))
    try:
        # A reader does not say when it passes an offset, hence the polling.
        while not enough() and (reader.position(topic, partition) or 0) < end:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
    finally:
        await reader.unfollow(topic, partition)
