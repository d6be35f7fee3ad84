"""Remember the offsets of recent requests and their events, so that a resumed stream can be read without a search."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_REQUESTS: Final = 20_000
"""Maximum number of requests in the index (about 8 MB). Beyond it, the oldest request is dropped."""


class RequestPosition(NamedTuple):
    topic: str
    offset: int


class EventSpan(NamedTuple):
    """The range of offsets of a request's events so far. ``end`` is the offset after the last event."""

    begin: int
    end: int


@dataclass(slots=True)
class _Entry:
    partition: int
    whole: bool
    posted: RequestPosition | None = None
    first: int | None = None
    last: int = -1


class RequestIndex:
    def __init__(self, size: int = MAX_REQUESTS) -> None:
        self._size = size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def follow(self, key: bytes, partition: int, *, whole: bool) -> None:
        """Add a request. ``whole`` means that the request is new and has no events yet.

        If ``whole`` is false, ``add_history`` must be called later with the request's earlier events.
        """
        if key in self._entries:
            return
        self._entries[key] = _Entry(partition, whole)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def note_request(self, key: bytes, topic: str, offset: int) -> None:
        entry = self._entries.get(key)
        if entry is not None and offset >= 0:
            entry.posted = RequestPosition(topic, offset)

    def note_event(self, key: bytes, offset: int) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        if offset <= entry.last:  # the broker has lost the last records, and assigns their offsets to new ones
            del self._entries[key]
            return
        entry.first = offset if entry.first is None else entry.first
        entry.last = offset

    def add_history(self, key: bytes, offsets: list[int]) -> None:
        """Add the events of a request that were on the log before ``follow`` was called.

        ``offsets`` are the offsets of these events, in ascending order.
        """
        entry = self._entries.get(key)
        if entry is None or entry.whole:
            return
        entry.whole = True
        if offsets:
            entry.first = min(offsets[0], offsets[0] if entry.first is None else entry.first)
            entry.last = max(offsets[-1], entry.last)

    def request(self, key: bytes) -> RequestPosition | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.posted

    def span(self, key: bytes) -> EventSpan | None:
        """Return the range of offsets of a request's events so far; None if the range is not known."""
        entry = self._entries.get(key)
        if entry is None or not entry.whole:
            return None
        return EventSpan(0, 0) if entry.first is None else EventSpan(entry.first, entry.last + 1)

    def history_span(self, key: bytes, after: int | None) -> EventSpan | None:
        """Return ``span(key)``. If ``after`` is equal to or greater than the ``end`` of this span, return None.

        ``after`` is the offset of the last event that the client has; None if the client has no event.
        """
        span = self.span(key)
        return span if span is not None and (after is None or after < span.end) else None

    def drop_partition(self, partition: int) -> None:
        for key in [key for key, entry in self._entries.items() if entry.partition == partition]:
            del self._entries[key]
