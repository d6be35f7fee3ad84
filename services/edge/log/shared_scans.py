"""Decide which look-up reads a partition next, and which other look-ups use the same records. Pure.

When an edge restarts, all its clients search the same log at once. A record that is read for one look-up also counts
for every other look-up that has reached the same offset, so a partition is read about once, however many search it.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from schemas.requests import Request
from schemas.stream import StreamEvent
from schemas.topics import Topic
from services.bus import Received, UnreadableRecord

JOIN_RECORDS: Final = 100_000
"""A turn starts up to this many records earlier if another look-up of the tenant is there, so that both read together.
Reading them takes about a second. A look-up that is further behind does not delay the others."""


class ScanPlace(NamedTuple):
    """The partition that is read."""

    topic: Topic
    partition: int


class Scan:
    """One look-up's way through a partition.

    Args:
        key: Key of the records.
        kinds: Kinds of the records.
        begin: The offset to read from.
        end: The offset to read to.
        first_only: Whether one record is enough.

    Attributes:
        position: The offset of the next record that it has not seen.
        found: Its records so far, in order.
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
        """Whether it has seen all the records that it needs."""
        return self.position >= self.end or bool(self._first_only and self.found)

    def rewind(self, offset: int) -> None:
        """Forget the records from this offset on: the log has lost them, and gives their offsets to others."""
        self.position = max(self._begin, min(self.position, offset))
        self.found = [record for record in self.found if record.offset < offset]


class ScanTurn:
    """One reader's turn at a partition, for the look-up whose turn it is and those that join it.

    Attributes:
        begin: The offset to start at.
    """

    __slots__ = ("_joined", "_last", "_passed", "begin", "owner", "place")

    def __init__(self, owner: Scan, begin: int) -> None:
        self.owner, self.place, self.begin = owner, owner.place, begin
        self._passed = begin
        self._last = -1  # offset of the record given last
        self._joined: dict[bytes, list[Scan]] = {}

    def __contains__(self, scan: Scan) -> bool:
        return scan in self._joined.get(scan.key, ())

    def __iter__(self) -> Iterator[Scan]:
        return (scan for scans in self._joined.values() for scan in scans)

    @property
    def over(self) -> bool:
        """Whether the look-up whose turn it is has left: it is complete or was given up."""
        return self.owner not in self

    @property
    def progressed(self) -> bool:
        """Whether any record was passed."""
        return self._passed > self.begin

    def join(self, scan: Scan) -> None:
        """Let a look-up take part if the reader has not passed its next record."""
        self._joined.setdefault(scan.key, []).append(scan)

    def leave(self, scan: Scan) -> None:
        """Let a look-up go that is complete or given up."""
        if scan in self:
            self._joined[scan.key].remove(scan)
            if not self._joined[scan.key]:
                del self._joined[scan.key]

    def wants(self, kind: str, key: bytes | None) -> bool:
        """Return whether a record belongs to one of the look-ups."""
        return key is not None and any(kind in scan.kinds for scan in self._joined.get(key, ()))

    def take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        """Give records to the look-ups they belong to."""
        for record in records:
            if record.offset <= self._last:
                self._rewind(record.offset)
            self._last = record.offset
            for scan in self._joined.get(_key(record), ()):
                if scan.position <= record.offset < scan.end:
                    scan.found.append(record)

    def advance(self, reader_position: int) -> list[Scan]:
        """Note that all records before this offset were given; return the look-ups that are complete now."""
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
    """The look-ups that are not complete: tenants take turns, a partition is read by one reader at a time.

    Args:
        per_tenant: Most turns of one tenant at the same time.
    """

    def __init__(self, per_tenant: int) -> None:
        self._per_tenant = per_tenant
        self._by_tenant: dict[str, deque[Scan]] = {}  # in the order of turns, and so are the scans of a tenant
        self._turns: dict[ScanPlace, ScanTurn] = {}

    def put(self, scan: Scan) -> None:
        """Add a look-up."""
        self._by_tenant.setdefault(scan.tenant, deque()).append(scan)

    def remove(self, scan: Scan) -> None:
        """Drop a look-up that is complete or given up; do nothing if it is not there."""
        scans = self._by_tenant.get(scan.tenant)
        if scans is not None and scan in scans:
            scans.remove(scan)
            if not scans:
                del self._by_tenant[scan.tenant]
        turn = self._turns.get(scan.place)
        if turn is not None:
            turn.leave(scan)

    def begin_turn(self) -> ScanTurn | None:
        """Return the next turn; None if no waiting look-up may have one."""
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
        """Note where a turn's reader really starts, as ``advance`` does: older records may be gone from the log."""
        for scan in self._all():
            if scan.place == turn.place and scan.position >= turn.begin:
                scan.position = max(scan.position, reader_position)
        return self.advance(turn, reader_position)

    def advance(self, turn: ScanTurn, reader_position: int) -> list[Scan]:
        """Note how far a turn's reader is, and let look-ups join whose next record is still to come.

        Returns:
            The look-ups that are complete now; they are removed.
        """
        for scan in self._all():
            if scan.place == turn.place and scan.position >= reader_position and scan not in turn:
                turn.join(scan)
        complete = turn.advance(reader_position)
        for scan in complete:
            self.remove(scan)
        return complete

    def end_turn(self, turn: ScanTurn) -> None:
        """Let the partition have another turn."""
        del self._turns[turn.place]

    def others_wait(self) -> bool:
        """Return whether there is a look-up that no turn serves."""
        return any(scan not in self._turns.get(scan.place, ()) for scan in self._all())

    def _all(self) -> Iterator[Scan]:
        return (scan for scans in self._by_tenant.values() for scan in scans)


def _key(record: Received | UnreadableRecord) -> bytes:
    if isinstance(record, UnreadableRecord):
        return record.key or b""
    return record.event.request_id.encode() if isinstance(record.event, Request | StreamEvent) else b""
