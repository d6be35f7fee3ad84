"""Keep the ledger's windows of the last hour, for the page at ``/ledger``.

The ledger sums up requests by window of time. By default, a window is one minute long.
"""

from typing import Final, NamedTuple

from schemas.side_events import Window
from services.books import Cell, Totals, totals_of
from services.runtime.classes.service_classes import DEFAULT_NAMES

US_PER_S: Final = 1_000_000
SPAN_S: Final = 3_600
"""Seconds for which a window is kept after its end."""

MOST_PARTS: Final = 20_000
"""Maximum number of parts that are kept. A part has a window's sums over the accounts of one partition, and takes about
0.7 KiB. Beyond the maximum, the oldest windows are dropped with all their parts."""

MOST_CLASSES: Final = 1_000
"""Maximum number of classes whose objectives are kept. Policies usually have a few classes."""

AHEAD_S: Final = 3_600
"""A window that starts more than this many seconds in the future is ignored, because a wrong clock dated it."""


class WindowKey(NamedTuple):
    """The key of one row of sums in the ledger: a window of time and a group of requests.

    Attributes:
        start_at: Start of the window, in microseconds since the epoch.
        end_at: End of the window, in microseconds since the epoch.
        cell: The values that the requests of the group have in common, such as the tenant, the lane and the model.
    """

    start_at: int
    end_at: int
    cell: Cell


def class_of(about: Window | Cell) -> str:
    """Return the class of the requests in a window or a cell.

    If no class was recorded, return ``chat`` for interactive requests and ``batch`` for batch requests.
    """
    return about.service_class or DEFAULT_NAMES[about.lane]


class _Sums:
    __slots__ = ("end_at", "parts", "total")

    def __init__(self) -> None:
        self.end_at = 0
        # By partition number. Encoded, because 20,000 objects with histograms would make garbage collection slow.
        self.parts: dict[int, bytes] = {}
        self.total = Totals()

    def put(self, part: int, totals: Totals) -> int:
        before = len(self.parts)
        if (old := self.parts.pop(part, None)) is not None:
            self.total.merge(Totals.decode(old), -1)
        if not totals.empty:  # the requests of an empty part are counted in another window
            self.parts[part] = totals.encode()
            self.total.merge(totals)
        return len(self.parts) - before


class WindowStore:
    """The ledger's windows of the last hour.

    Args:
        max_parts: Maximum number of parts that are kept. A part has the sums for one window, one ``Cell`` (a group of
            requests) and one partition of ``railbus.accounts``.

    Attributes:
        complete_since: A time in microseconds since the epoch. Windows that start earlier may have been dropped because
            of ``max_parts``.
        dated_ahead: Number of records that were ignored because their window starts too far in the future.
        wanted_shares: For each class, the share of requests that must meet the objectives of the class, from 0 to 1.
        newest_ms: The broker's timestamp of the newest record, in milliseconds; None before the first record.
    """

    def __init__(self, max_parts: int = MOST_PARTS) -> None:
        self._max_parts = max_parts
        self.clear()

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        self._windows: dict[tuple[int, Cell], _Sums] = {}
        self._count = 0
        self.complete_since = 0
        self.dated_ahead = 0
        self.newest_ms: int | None = None
        self.wanted_shares: dict[str, float] = {}

    def take(self, window: Window, at_ms: int, now_us: int) -> None:
        """Add a record of the topic ``railbus.ledger``. ``at_ms`` is the record's timestamp.

        The caller must pass the records in the order of the log.
        """
        self.newest_ms = at_ms
        if window.start_at > now_us + AHEAD_S * US_PER_S:
            self.dated_ahead += 1
            return
        if window.end_at <= now_us - SPAN_S * US_PER_S or window.start_at < self.complete_since:
            return
        if window.wanted_share is not None:
            self._note_wanted(class_of(window), window.wanted_share)
        cell, totals = totals_of(window)
        sums = self._windows.setdefault((window.start_at, cell), _Sums())
        sums.end_at = window.end_at
        self._count += sums.put(window.part, totals)
        if self._count > self._max_parts:
            self._drop_oldest(now_us)

    def _note_wanted(self, service_class: str, share: float) -> None:
        if service_class in self.wanted_shares or len(self.wanted_shares) < MOST_CLASSES:
            self.wanted_shares[service_class] = share

    def forget(self, now_us: int) -> None:
        """Drop the windows that ended more than ``SPAN_S`` ago."""
        since = now_us - SPAN_S * US_PER_S
        for key in [key for key, sums in self._windows.items() if sums.end_at <= since]:
            self._drop(key)

    def windows(self, tenant: str | None = None) -> list[tuple[WindowKey, Totals]]:
        """Return the windows of one tenant, or of all tenants if ``tenant`` is None, with their sums.

        A later call of ``take`` can change the returned sums.
        """
        return [
            (WindowKey(start_at, sums.end_at, cell), sums.total)
            for (start_at, cell), sums in self._windows.items()
            if sums.parts and tenant in {None, cell.tenant}
        ]

    def _drop_oldest(self, now_us: int) -> None:
        self.forget(now_us)
        for start_at, cell in sorted(self._windows, key=lambda key: key[0]):
            enough = self._count <= self._max_parts * 9 // 10  # not the whole limit, which the next record would exceed
            if enough and start_at >= self.complete_since:
                break
            self._drop((start_at, cell))
            self.complete_since = start_at + 1

    def _drop(self, key: tuple[int, Cell]) -> None:
        self._count -= len(self._windows.pop(key).parts)
