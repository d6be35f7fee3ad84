"""The ledger's windows of the last hour, as the page needs them: of each window and part the newest record. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from schemas.side_events import Window
from services.books import Cell, Totals, totals_of

US_PER_S: Final = 1_000_000
SPAN_S: Final = 3_600
"""How long after its end a window is kept."""

MOST_WINDOWS: Final = 10_000
"""Most windows and parts that are kept, at about 2 KiB each. Beyond that the oldest go, whole windows at a time."""

AHEAD_S: Final = 3_600
"""A window that begins further ahead was dated by a wrong clock, and would never go."""


class WindowKey(NamedTuple):
    """One window of one kind of request, of one partition of the accounts."""

    start_at: int
    end_at: int
    cell: Cell
    part: int


class WindowStore:
    """The newest record of each window and part.

    Args:
        most: Most of them that are kept.

    Attributes:
        complete_since: Windows that begin earlier may be incomplete; 0 while none was dropped for lack of space.
        ignored: Records dated too far ahead.
        newest_ms: When the broker appended the newest record; None while there is none.
    """

    def __init__(self, most: int = MOST_WINDOWS) -> None:
        self._most = most
        self.clear()

    def __len__(self) -> int:
        return len(self._totals)

    def clear(self) -> None:
        self._totals: dict[WindowKey, Totals] = {}
        self.complete_since = 0
        self.ignored = 0
        self.newest_ms: int | None = None

    def take(self, window: Window, at_ms: int, now_us: int) -> None:
        """Keep a record that was appended after all that were taken before."""
        self.newest_ms = at_ms
        if window.start_at > now_us + AHEAD_S * US_PER_S:
            self.ignored += 1
            return
        if window.end_at <= now_us - SPAN_S * US_PER_S or window.start_at < self.complete_since:
            return
        cell, totals = totals_of(window)
        key = WindowKey(window.start_at, window.end_at, cell, window.part)
        if totals.empty:  # all its requests were taken back: they are counted elsewhere
            self._totals.pop(key, None)
            return
        self._totals[key] = totals
        if len(self._totals) > self._most:
            self._drop_oldest(now_us)

    def forget(self, now_us: int) -> None:
        """Drop windows that ended longer than ``SPAN_S`` ago."""
        since = now_us - SPAN_S * US_PER_S
        self._totals = {key: totals for key, totals in self._totals.items() if key.end_at > since}

    def windows(self, tenant: str | None = None) -> list[tuple[WindowKey, Totals]]:
        """Return what is kept, of one tenant or of all."""
        return [(key, totals) for key, totals in self._totals.items() if tenant in {None, key.cell.tenant}]

    def _drop_oldest(self, now_us: int) -> None:
        self.forget(now_us)
        for start_at in self._starts():
            if len(self._totals) <= self._most * 9 // 10:  # not again with the next record
                break
            self._totals = {key: totals for key, totals in self._totals.items() if key.start_at > start_at}
            self.complete_since = start_at + 1

    def _starts(self) -> Iterator[int]:
        return iter(sorted({key.start_at for key in self._totals}))
