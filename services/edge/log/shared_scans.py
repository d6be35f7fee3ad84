"""Share the readers of the log among look-ups.

A look-up searches one partition for the records of one request. A turn is a short time in which a reader reads one
partition. Each turn is started for one look-up, but other look-ups of the same partition can join the turn. A look-up
that has joined gets the records that the reader reads from then on.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import Topic
from services.bus import Received, UnreadableRecord

JOIN_RECORDS: Final = 100_000
"""A turn may start up to this many records before its owner's position, if other look-ups of the owner's tenant need
those records. To read so many records takes about a second. A look-up further back is left out, because it would delay
the owner."""


class ScanPlace(NamedTuple):
    topic: Topic
    partition: int


class Scan:
    """A look-up: a search of one partition for the records of one request.

    Args:
        key: Key of the wanted records.
        kinds: Kinds of the wanted records.
        begin: The first offset to search.
        end: The offset after the last one to search.
        first_only: Whether the search ends when one record is found.

    Attributes:
        position: The next offset to search.
        found: The records found so far, in order.
    """

    __slots__ = ("_begin", "_first_only", "end", "found", "key", "kinds", "place", "position", "tenant")

    def __init__(
        self, tenant: str, place: ScanPlace, key: bytes, kinds: frozenset[str], begin: int, end: int, *,
        first_only: bool = False,
    ) -> None:  # fmt: skip
        self.tenant, self.place, self.key, self.kinds = tenant, place, key, kinds
        self._begin = self.position = begin
        self.end = end
        self.found: list[Received | UnreadableRecord] = []
        self._first_only = first_only

    @property
    def complete(self) -> bool:
        return self.position >= self.end or bool(self._first_only and self.found)

    def rewind(self, offset: int) -> None:
        """If the search has passed ``offset``, go back to this offset. Drop the records found at or after it."""
        self.position = max(self._begin, min(self.position, offset))
        self.found = [record for record in self.found if record.offset < offset]


class ScanTurn:
    """A short time in which a reader reads one partition, for one look-up or several.

    Attributes:
        owner: The look-up for which the turn was started. Other look-ups of the same partition can join the turn.
        begin: The offset at which the reader should start.
    """

    __slots__ = ("_joined", "_last", "_passed", "begin", "owner", "place")

    def __init__(self, owner: Scan, begin: int) -> None:
        self.owner, self.place, self.begin = owner, owner.place, begin
        self._passed = begin
        self._last = -1  # offset of the last record that was passed to ``take``
        self._joined: dict[bytes, list[Scan]] = {}

    def __contains__(self, scan: Scan) -> bool:
        return scan in self._joined.get(scan.key, ())

    def __iter__(self) -> Iterator[Scan]:
        return (scan for scans in self._joined.values() for scan in scans)

    @property
    def over(self) -> bool:
        return self.owner not in self

    @property
    def progressed(self) -> bool:
        return self._passed > self.begin

    def join(self, scan: Scan) -> None:
        # The reader must not have passed the position of ``scan``.
        self._joined.setdefault(scan.key, []).append(scan)

    def leave(self, scan: Scan) -> None:
        if scan in self:
            self._joined[scan.key].remove(scan)
            if not self._joined[scan.key]:
                del self._joined[scan.key]

    def wants(self, kind: str, key: bytes | None) -> bool:
        return key is not None and any(kind in scan.kinds for scan in self._joined.get(key, ()))

    def take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if record.offset <= self._last:
                self._rewind(record.offset)
            self._last = record.offset
            for scan in self._joined.get(_key(record), ()):
                if scan.position <= record.offset < scan.end:
                    scan.found.append(record)

    def advance(self, reader_position: int) -> list[Scan]:
        """Record that the reader has read all records before the offset ``reader_position``.

        Return the look-ups that are complete now.
        """
        if reader_position < self._passed:
            self._rewind(reader_position)
        self._passed = reader_position
        for scan in self:
            scan.position = max(scan.position, reader_position)
        complete = [scan for scan in self if scan.complete]
        for scan in complete:
            self.leave(scan)
        return complete

    def _rewind(self, offset: int) -> None:
        for scan in self:
            scan.rewind(offset)


class ScanQueue:
    """The unfinished look-ups of all tenants, and the turns in which readers work on these look-ups.

    In a turn, one reader reads one partition for a short time. New turns go to the tenants in rotation. Several turns
    can run at the same time, but only one for each partition.

    Args:
        per_tenant: Maximum number of running turns of one tenant.
    """

    def __init__(self, per_tenant: int) -> None:
        self._per_tenant = per_tenant
        self._by_tenant: dict[str, deque[Scan]] = {}  # both levels are in the order of turns
        self._turns: dict[ScanPlace, ScanTurn] = {}

    def put(self, scan: Scan) -> None:
        self._by_tenant.setdefault(scan.tenant, deque()).append(scan)

    def remove(self, scan: Scan) -> None:
        scans = self._by_tenant.get(scan.tenant)
        if scans is not None and scan in scans:
            scans.remove(scan)
            if not scans:
                del self._by_tenant[scan.tenant]
        turn = self._turns.get(scan.place)
        if turn is not None:
            turn.leave(scan)

    def begin_turn(self) -> ScanTurn | None:
        """Choose a look-up and start a turn for it. Return the turn; None if no turn may start now."""
        lent = Counter(turn.owner.tenant for turn in self._turns.values())
        for tenant, scans in self._by_tenant.items():
            owner = next((scan for scan in scans if scan.place not in self._turns), None)
            if owner is None or lent[tenant] >= self._per_tenant:
                continue
            self._by_tenant[tenant] = self._by_tenant.pop(tenant)
            scans.remove(owner)
            scans.append(owner)
            nearby = range(owner.position - JOIN_RECORDS, owner.position + 1)
            begin = min(scan.position for scan in scans if scan.place == owner.place and scan.position in nearby)
            self._turns[owner.place] = ScanTurn(owner, begin)
            return self._turns[owner.place]
        return None

    def start(self, turn: ScanTurn, reader_position: int) -> list[Scan]:
        """Record that the reader of ``turn`` starts at the offset ``reader_position``.

        Return the look-ups that are complete now. If the log no longer has the record at ``turn.begin``,
        ``reader_position`` is a later offset. A look-up that searches only offsets before ``reader_position`` is then
        complete.
        """
        for scan in self._all():
            if scan.place == turn.place and scan.position >= turn.begin:
                scan.position = max(scan.position, reader_position)
        return self.advance(turn, reader_position)

    def advance(self, turn: ScanTurn, reader_position: int) -> list[Scan]:
        """Record that in this turn, the reader has read all records before the offset ``reader_position``.

        Return the look-ups that are complete now.
        """
        for scan in self._all():
            if scan.place == turn.place and scan.position >= reader_position and scan not in turn:
                turn.join(scan)
        complete = turn.advance(reader_position)
        for scan in complete:
            self.remove(scan)
        return complete

    def end_turn(self, turn: ScanTurn) -> None:
        del self._turns[turn.place]

    def others_wait(self) -> bool:
        return any(scan not in self._turns.get(scan.place, ()) for scan in self._all())

    def _all(self) -> Iterator[Scan]:
        return (scan for scans in self._by_tenant.values() for scan in scans)


def _key(record: Received | UnreadableRecord) -> bytes:
    if isinstance(record, UnreadableRecord):
        return record.key or b""
    return record.event.request_id.encode() if isinstance(record.event, Request | StreamEvent) else b""
