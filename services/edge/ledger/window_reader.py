"""Read the topics behind the page at ``/ledger``, and make the reports for this page.

``railbus.ledger`` has sums over requests by window of time. ``railbus.accounts`` has a summary of each closed request.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import orjson

from schemas.side_events import Account, Window
from schemas.topics import ACCOUNTS, LEDGER
from services.bus import AtTime, BusSettings, InFlightLimit, Received, TailReader, UnreadableRecord
from services.edge.errors import ApiError
from services.edge.ledger.activity import Activity
from services.edge.ledger.report import Query, Steps, report_steps
from services.edge.ledger.window_store import SPAN_S, US_PER_S, WindowStore
from services.runtime.clock import now_ms, steady_us
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("edge")

IDLE_S: Final = 600.0
"""The edge stops reading the topics when no report was requested for this many seconds."""

READ_BACK_S: Final = SPAN_S + 600
"""Reading of ``railbus.ledger`` begins with the records of this many seconds ago. The ledger may rewrite a window until
the window is final, which is by default ten minutes after its end."""

ACCOUNTS_BACK_S: Final = 600
"""Reading of accounts begins with those of this many seconds ago, for the latest recalls and the breakers' states. A
report has no older ones."""

CHECK_S: Final = 2.0
"""Seconds between two requests to the broker for the end offset of ``railbus.ledger``."""

RETRY_S: Final = 60.0
"""If the broker refused access to the topics, reading can start again after this many seconds."""

BATCH: Final = 16
"""Maximum number of records that are decoded without a pause in which streams are served."""

PAUSE_S: Final = 0.002
"""Pause in seconds after at most ``BATCH`` records, so that a long backlog uses at most about half of the event loop's
time."""

REPORT_S: Final = 2.0
"""Seconds for which a report is reused for the same query."""

MOST_REPORTS: Final = 64
MOST_WAITING: Final = 32
"""Maximum number of users that wait for a report. There is a limit because reports are made one after the other."""

State = Literal["reading", "live", "refused"]


class WindowReader:
    """Reads the topics behind the page at ``/ledger``, and makes the reports for this page.

    Args:
        idle_s: Reading stops when ``report`` has not been called for this many seconds.
    """

    def __init__(self, settings: BusSettings, *, idle_s: float = IDLE_S) -> None:
        self._settings = settings
        self._idle_s = idle_s
        self._store = WindowStore()
        self._activity = Activity()
        self._state: State = "reading"
        self._asked = asyncio.Event()
        self._asked_at = 0.0
        self._checked_at: float | None = None
        self._unreadable = 0
        self._limit = InFlightLimit(BATCH)
        self._reports: dict[tuple[str | None, Query], tuple[float, dict[str, Any]]] = {}
        self._making = asyncio.Lock()
        self._waiting = 0

    @property
    def reads(self) -> bool:
        return self._asked.is_set()

    async def run(self) -> None:
        """Read the topics ``railbus.ledger`` and ``railbus.accounts``, until cancelled."""
        while True:
            await self._asked.wait()
            try:
                await self._read()
            except* UserError as errors:
                self._state = "refused"
                self._asked.clear()
                _log.warning("the page at /ledger has no data: %s", errors.exceptions[0])
                await asyncio.sleep(RETRY_S)
            finally:
                self._store.clear()
                self._activity.clear()
                self._reports.clear()

    async def report(self, tenant: str | None, query: Query) -> bytes:
        """Return a report as JSON. It covers only ``tenant``; if ``tenant`` is None, it covers every tenant.

        Raises:
            ApiError: 503, if too many users wait for a report.
        """
        self._asked_at = asyncio.get_running_loop().time()
        self._asked.set()
        if self._waiting >= MOST_WAITING:
            raise ApiError(503, "Too many readers wait for the ledger.", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._making:
                found = await self._report(tenant, query)
        finally:
            self._waiting -= 1
        return orjson.dumps(found | self._status() | self._newest(tenant, query))

    def _newest(self, tenant: str | None, query: Query) -> dict[str, Any]:
        now_us = steady_us()
        read_back_at = now_us - ACCOUNTS_BACK_S * US_PER_S
        # Older recalls are known only while the page was open, so they would not be all.
        since_at = max(read_back_at, now_us - query.minutes * 60 * US_PER_S)
        recalls = self._activity.recalls(tenant or query.tenant, since_at)
        breaker = None if tenant is not None else self._activity.breaker(read_back_at)
        return {"recalls": recalls, "breaker": breaker}

    async def _report(self, tenant: str | None, query: Query) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        made_at, found = self._reports.get((tenant, query), (0.0, {}))
        if found and loop.time() - made_at < REPORT_S:
            return found
        now_us = steady_us()
        self._store.forget(now_us)
        found = await _in_steps(report_steps(self._store.windows(tenant), query, now_us, self._store.wanted_shares))
        if self._state == "live":
            self._reports.pop((tenant, query), None)
            while len(self._reports) >= MOST_REPORTS:
                del self._reports[next(iter(self._reports))]
            self._reports[tenant, query] = (loop.time(), found)
        return found

    def _status(self) -> dict[str, Any]:
        now_s, newest_ms = asyncio.get_running_loop().time(), self._store.newest_ms
        return {
            "state": self._state,
            "log_age_s": None if self._checked_at is None else now_s - self._checked_at,
            "published_age_s": None if newest_ms is None else max(0.0, now_ms() / 1_000 - newest_ms / 1_000),
            "complete_since": self._store.complete_since,
            "unreadable": self._unreadable,
            "dated_ahead": self._store.dated_ahead,
        }

    async def _read(self) -> None:
        reader = TailReader(self._settings, handler=self._take, include_newer=True, in_flight_limit=self._limit)
        self._state, self._checked_at, self._unreadable = "reading", None, 0
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.run())
            await reader.follow(LEDGER, 0, AtTime(now_ms() - READ_BACK_S * 1_000))
            for number in range(ACCOUNTS.partitions(self._settings.partitions)):
                await reader.follow(ACCOUNTS, number, AtTime(now_ms() - ACCOUNTS_BACK_S * 1_000))
            loop = asyncio.get_running_loop()
            while loop.time() - self._asked_at < self._idle_s:
                end = await reader.end_offset(LEDGER, 0)
                self._checked_at = loop.time()
                if (reader.position(LEDGER, 0) or 0) >= end:
                    self._state = "live"
                await asyncio.sleep(min(self._idle_s, CHECK_S if self._state == "live" else 0.05))
            self._asked.clear()
            self._state = "reading"
            reading.cancel()

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        now_us = steady_us()
        for record in records:
            if isinstance(record, UnreadableRecord):  # the package ``services.bus`` has counted and logged it
                self._unreadable += 1
            elif isinstance(record.event, Window):
                self._store.take(record.event, record.timestamp_ms, now_us)
            elif isinstance(record.event, Account):
                self._activity.take(record.event, now_us)
        self._limit.acquire(len(records))
        asyncio.get_running_loop().call_later(PAUSE_S, self._limit.release, len(records))


async def _in_steps(steps: Steps) -> dict[str, Any]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[str, Any] = end.value
            return found
        await asyncio.sleep(0)
