"""Where the events of recent requests are on the stream log, so that a resumed stream reads only these. Pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_REQUESTS: Final = 20_000
"""Maximum number of requests in the index (about 8 MB). The oldest is dropped, and later searched on the log."""


class RequestPosition(NamedTuple):
    """Where a ``Request`` is on the log."""

    topic: str
    offset: int


class EventSpan(NamedTuple):
    """All events of a request so far have offsets in [begin, end)."""

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
    """The requests whose streams were open here, while their partition is followed without a gap.

    Their events are noted even after the last stream has ended, because a recall may still come.
    """

    def __init__(self, size: int = MAX_REQUESTS) -> None:
        self._size = size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def follow(self, key: bytes, partition: int, *, whole: bool) -> None:
        """Note the request's events from now on; its partition must be followed.

        Args:
            key: The request's id, as the key of its records.
            partition: Its partition.
            whole: Whether it has no events yet; otherwise ``add_history`` makes the entry usable.
        """
        if key in self._entries:
            return
        self._entries[key] = _Entry(partition, whole)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def note_request(self, key: bytes, topic: str, offset: int) -> None:
        """Note where the ``Request`` itself is."""
        entry = self._entries.get(key)
        if entry is not None and offset >= 0:
            entry.posted = RequestPosition(topic, offset)

    def note_event(self, key: bytes, offset: int) -> None:
        """Note an event that was read by following the partition."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if offset <= entry.last:  # the broker has lost the end of its log and gives offsets a second time
            del self._entries[key]
            return
        entry.first = offset if entry.first is None else entry.first
        entry.last = offset

    def add_history(self, key: bytes, offsets: list[int]) -> None:
        """Add the events from before ``follow``; some may have been noted already."""
        entry = self._entries.get(key)
        if entry is None or entry.whole:
            return
        entry.whole = True
        if offsets:
            entry.first = min(offsets[0], offsets[0] if entry.first is None else entry.first)
            entry.last = max(offsets[-1], entry.last)

    def request(self, key: bytes) -> RequestPosition | None:
        """Return the position of the ``Request``; None if it is not known."""
        entry = self._entries.get(key)
        return None if entry is None else entry.posted

    def span(self, key: bytes) -> EventSpan | None:
        """Return the offsets of all events read so far; None if they are not known."""
        entry = self._entries.get(key)
        if entry is None or not entry.whole:
            return None
        return EventSpan(0, 0) if entry.first is None else EventSpan(entry.first, entry.last + 1)

    def history_span(self, key: bytes, after: int | None) -> EventSpan | None:
        """Return the events' offsets for a client that has the op at this offset; None if the log must be searched."""
        span = self.span(key)
        return span if span is not None and (after is None or after < span.end) else None

    def drop_partition(self, partition: int) -> None:
        """Forget the requests of a partition that is no longer followed."""
        for key in [key for key, entry in self._entries.items() if entry.partition == partition]:
            del self._entries[key]
