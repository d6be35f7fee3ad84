"""The ledger's state for one partition of ``railbus.accounts`` and the same partition of ``railbus.receipts``. No I/O.

The state has an entry for each request, and sums for each window. A key-value table has what is needed to restore the
state. ``PartitionBooks.take`` returns the changes to this table, and the caller writes them.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from schemas.base import AnyEvent
from schemas.ids import time_ms
from schemas.side_events import Account, Detached, Window
from schemas.topics import DAY_MS
from services.books.config import BooksConfig
from services.books.entry import Entry, facts_of, receipt_of
from services.books.totals import Cell, Share, Totals, share_of

# After a crash, the state is restored from the table. A crash may lose the newest changes to the table, but never a
# change that is older than a kept one, so the table has a prefix of the changes. Three rules make every prefix correct:
#
# - Whether an event is too late follows from its append time and its window. The window of a receipt is that of the
#   request's account, or is unknown as long as the account was not read.
# - A request's entry is one value. If an event is read again, joining it to the entry changes nothing.
# - The sums of an open window are not in the table; they are computed from the entries. When a window is old, its sums
#   are written, then the mark ``sealed_s``, and only then its entries are deleted. For windows that end by the mark,
#   the sums in the table count and the entries do not. For later windows, the entries count and the sums do not.

DELETES_EACH: Final = 8
"""Number of entries of sealed windows that are deleted for each event read. An event adds at most one entry, so
deletions are faster than additions."""

LONGEST_OPEN_S: Final = DAY_MS // 1_000
"""Longest time for which a request can be open, in seconds. A policy can allow a class no longer deadline."""

_MARK: Final = b"/s"
"""End of the key under which a partition's ``sealed_s`` is kept. No other key ends like this: the key of an entry ends
with a request id, and the key of a window with JSON."""

_WIDTH: Final = b"width/%d"
"""Key under which the width of a partition's windows is kept. It does not begin with the partition's number, so that
older versions, which did not keep the width, ignore it."""

Source = Literal["accounts", "receipts"]
"""The topics from which a request's entry is joined."""


class OtherWindowWidth(Exception):
    """The stored sums are of windows with another width. They cannot be continued.

    Attributes:
        width_s: The width of the stored windows, in seconds.
    """

    def __init__(self, width_s: int) -> None:
        super().__init__(f"the stored windows are {width_s} s wide")
        self.width_s = width_s


class TableChange(NamedTuple):
    key: bytes
    value: bytes | None


def newest_of_each(changes: Iterable[TableChange]) -> list[TableChange]:
    # A change before a ``sealed_s`` mark is kept even if a change after the mark replaces it, so that every prefix of
    # the result is valid too. If a crash loses the change for an event of this batch, the event is read again.
    found: list[TableChange] = []
    since_mark: dict[bytes, bytes | None] = {}
    for key, value in changes:
        since_mark.pop(key, None)
        since_mark[key] = value
        if key.endswith(_MARK):
            found += (TableChange(*item) for item in since_mark.items())
            since_mark.clear()
    return found + [TableChange(*item) for item in since_mark.items()]


class PartitionBooks:
    """The ledger's state for one partition number.

    Attributes:
        entries: Entries by request id.
        windows: For each window, the sums of each ``Cell``. The key is the window's start in seconds since the epoch.
        sealed_s: Time in seconds since the epoch. Windows that end at or before this time are final.
        late: Number of events that were ignored because they were appended to the log too late, or because they are
            receipts whose account did not come within about twice ``keep_s``.
    """

    def __init__(self, number: int, config: BooksConfig) -> None:
        self.number = number
        self.entries: dict[str, Entry] = {}
        self.windows: dict[int, dict[Cell, Totals]] = {}
        self.sealed_s = 0
        self.late = 0
        self._config = config
        self._known_ms: dict[Source, int] = {"accounts": 0, "receipts": 0}
        self._ids: dict[int, set[str]] = {}  # request ids, by the window's start
        self._orphans: dict[str, None] = {}  # receipts without account, oldest first
        self._deletes: deque[str] = deque()  # bounded by the requests of the windows that were just sealed
        self._dirty: dict[tuple[int, Cell], None] = {}

    def take(self, event: AnyEvent, appended_ms: int) -> list[TableChange]:
        """Process an ``Account`` or ``Detached`` event. Return the changes to the key-value table, in order."""
        match event:
            case Account():
                source: Source = "accounts"
                news = Entry(facts=facts_of(event), read_ms=appended_ms)
                last_s = self._config.window_start_s(event.closed_at) + self._config.window_s
            case Detached():
                source = "receipts"
                news = Entry(receipt=receipt_of(event), read_ms=appended_ms)
                last_s = self._receipt_window_end_s(event.request_id)
            case _:
                return []
        changes: list[TableChange] = []
        if appended_ms < (last_s + self._config.keep_s) * 1_000:
            changes = self._join(event.request_id, news)
        else:
            self.late += 1
        self._know(source, appended_ms)
        return changes + self._seal() + self._delete()

    @property
    def newest_ms(self) -> int:
        """Return the latest append time of all events that were processed, in milliseconds since the epoch."""
        return max(self._known_ms.values())

    def caught_up(self, source: Source, at_ms: int) -> None:
        """Record that all events of topic ``source`` with an append time before ``at_ms`` have been processed."""
        # A window is sealed only when both topics were read far enough. ``at_ms`` must be a value that ``newest_ms``
        # had before the caller asked the broker for the end of the topic, so that later records were appended after
        # ``at_ms``.
        self._know(source, at_ms)

    def restore(self, table: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the state from the key-value table. ``table`` yields the key and the value of each row.

        Keys that do not begin with the number of this partition are ignored.

        Raises:
            OtherWindowWidth: The table has sums of windows with another width.
        """
        prefix, own, width_s = b"%d/" % self.number, [], self._config.window_s
        for key, value in table:
            if key == _WIDTH % self.number:
                width_s = int(value)
            elif key.startswith(prefix):
                own.append((key[len(prefix) :], value))
        if width_s != self._config.window_s:
            raise OtherWindowWidth(width_s)
        self.sealed_s = next((int(value) for key, value in own if key == b"s"), 0)
        for key, value in own:
            kind, _, rest = key.partition(b"/")
            if kind == b"w":
                start_s, cell = _read_window_key(rest)
                if self._sealed(start_s):
                    self.windows.setdefault(start_s, {})[cell] = Totals.decode(value)
                    self._dirty[start_s, cell] = None
            elif kind == b"e":
                self._restore_entry(rest.decode(), Entry.decode(value))
        self._orphans = dict.fromkeys(sorted(self._orphans, key=lambda each: self.entries[each].read_ms))

    def dirty(self, max_windows: int) -> Iterator[Window]:
        """Yield at most ``max_windows`` windows that have changed since they were last yielded."""
        for start_s, cell in list(self._dirty)[:max_windows]:
            del self._dirty[start_s, cell]
            totals = self.windows.get(start_s, {}).get(cell)
            if totals is not None:
                yield self._window(start_s, cell, totals)

    def all_windows(self) -> Iterator[Window]:
        for start_s, cells in self.windows.items():
            for cell, totals in cells.items():
                yield self._window(start_s, cell, totals)

    def _window(self, start_s: int, cell: Cell, totals: Totals) -> Window:
        config = self._config
        wanted = config.wanted_share_of(cell.service_class, cell.lane)
        final = self._sealed(start_s)
        return totals.window(cell, start_s, config.window_s, part=self.number, final=final, wanted_share=wanted)

    def _receipt_window_end_s(self, request_id: str) -> int:
        entry = self.entries.get(request_id)
        if entry is None or entry.facts is None:
            return time_ms(request_id) // 1_000 + LONGEST_OPEN_S
        return self._config.window_start_s(entry.facts.closed_at) + self._config.window_s

    def _know(self, source: Source, appended_ms: int) -> None:
        self._known_ms[source] = max(self._known_ms[source], appended_ms)

    def _sealed(self, start_s: int) -> bool:
        return start_s + self._config.window_s <= self.sealed_s

    def _restore_entry(self, request_id: str, entry: Entry) -> None:
        share = share_of(entry, self._config)
        if share is not None and self._sealed(share.start_s):
            self._deletes.append(request_id)  # the sums of its window include it
            return
        self.entries[request_id] = entry
        if share is None:
            self._orphans[request_id] = None
        else:
            self._count(request_id, share, 1)

    def _join(self, request_id: str, news: Entry) -> list[TableChange]:
        before = self.entries.get(request_id)
        after = news if before is None else before.join(news)
        if before is not None and after.says_the_same(before):
            return []
        old = None if before is None else share_of(before, self._config)
        new = share_of(after, self._config)
        if new is not None and self._sealed(new.start_s):
            return []  # the sums of its window include it, because it was read before
        if old is not None:
            self._count(request_id, old, -1)
        if new is None:
            self._orphans.setdefault(request_id)
        else:
            self._orphans.pop(request_id, None)
            self._count(request_id, new, 1)
        self.entries[request_id] = after
        return [TableChange(self._entry_key(request_id), after.encode())]

    def _count(self, request_id: str, share: Share, sign: int) -> None:
        start_s, cell = share.start_s, share.cell
        cells = self.windows.setdefault(start_s, {})
        totals = cells.get(cell)
        if totals is None:
            totals = cells[cell] = Totals()
        totals.add(share, sign)
        ids = self._ids.setdefault(start_s, set())
        if sign > 0:
            ids.add(request_id)
        else:
            ids.discard(request_id)
        self._dirty[start_s, cell] = None

    def _seal(self) -> list[TableChange]:
        width_s, keep_s = self._config.window_s, self._config.keep_s
        upto_s = (min(self._known_ms.values()) // 1_000 - keep_s) // width_s * width_s
        if upto_s <= self.sealed_s:
            return []
        changes: list[TableChange] = []
        old = sorted(start_s for start_s in self._ids if start_s + width_s <= upto_s)
        for start_s in old:
            for cell, totals in self.windows[start_s].items():
                changes.append(TableChange(self._window_key(start_s, cell), totals.encode()))
                self._dirty[start_s, cell] = None
        changes.append(TableChange(_WIDTH % self.number, b"%d" % width_s))
        changes.append(TableChange(b"%d" % self.number + _MARK, b"%d" % upto_s))
        self.sealed_s = upto_s
        for start_s in old:
            self._drop(self._ids.pop(start_s))
        self._drop_orphans(upto_s - keep_s - width_s)
        return changes + self._forget(upto_s)

    def _drop_orphans(self, upto_s: int) -> None:
        # The account of these receipts may still come, if the request stays open for long. But their number must be
        # bounded, and the account of a receipt mostly comes within seconds or never.
        while self._orphans:
            request_id = next(iter(self._orphans))
            if self.entries[request_id].read_ms >= upto_s * 1_000:
                break
            del self._orphans[request_id]
            self._drop((request_id,))
            self.late += 1

    def _drop(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            del self.entries[request_id]
            self._deletes.append(request_id)

    def _forget(self, upto_s: int) -> list[TableChange]:
        oldest_s = upto_s - self._config.show_s
        kept = self._ids.keys() | {start_s for start_s, _ in self._dirty}  # what was just sealed is not published yet
        gone = [start_s for start_s in self.windows if start_s < oldest_s and start_s not in kept]
        return [
            TableChange(self._window_key(start_s, cell), None) for start_s in gone for cell in self.windows.pop(start_s)
        ]

    def _delete(self) -> list[TableChange]:
        changes: list[TableChange] = []
        while self._deletes and len(changes) < DELETES_EACH:
            request_id = self._deletes.popleft()
            if request_id not in self.entries:  # otherwise a late receipt made a new entry
                changes.append(TableChange(self._entry_key(request_id), None))
        return changes

    def _entry_key(self, request_id: str) -> bytes:
        return b"%d/e/%s" % (self.number, request_id.encode())

    def _window_key(self, start_s: int, cell: Cell) -> bytes:
        return b"%d/w/%d/%s" % (self.number, start_s, json.dumps(cell).encode())


def _read_window_key(rest: bytes) -> tuple[int, Cell]:
    start_s, _, cell = rest.partition(b"/")
    return int(start_s), Cell(*json.loads(cell))
