"""Which requests get a verdict, once each. No I/O, no clock."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.requests import Request
from schemas.stream import Verdict
from schemas.topics import STREAMS
from services.bus import Received, Unread
from services.processor import Core, Done, Effect, Place, Write

MAX_JUDGED: Final = 100_000
"""Request ids that are remembered, so that a record that is read twice gets one verdict."""

MAX_SKEW_US: Final = 60_000_000
"""How far a request's own time may be off before it counts as old without regard to when it was appended."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Have this request evaluated by the rails."""

    place: Place
    request: Request
    traceparent: str | None


class Rails(Core):
    """The requests of one lane. One that is read again after a crash or a rebalance is judged again if it has to be."""

    def __init__(self) -> None:
        self._judged: OrderedDict[str, None] = OrderedDict()
        self._under_way: dict[Place, str] = {}  # bounded by the shell's room

    @property
    def backlog(self) -> int:
        """Requests that are being judged."""
        return len(self._under_way)

    def lost(self, number: int) -> None:
        """Whoever has the partition now judges what was under way; its verdict here comes to nothing."""
        for place in [place for place in self._under_way if place.partition == number]:
            self._judged.pop(self._under_way.pop(place), None)

    def read(self, record: Received | Unread, at_us: int, now_us: int) -> Sequence[Effect]:
        """Have a request judged that is new, and that somebody can still wait for."""
        place = Place.of(record)
        request = record.event if isinstance(record, Received) else None
        if not isinstance(record, Received) or not isinstance(request, Request):
            return (Done(place),)
        total_us = request.deadlines.total_ms * 1_000
        over = now_us > at_us + total_us or now_us > request.at + total_us + MAX_SKEW_US
        if request.attempt > 1 or over or request.request_id in self._judged:
            return (Done(place),)
        self._judged[request.request_id] = None
        if len(self._judged) > MAX_JUDGED:
            self._judged.popitem(last=False)
        self._under_way[place] = request.request_id
        return (Evaluate(place, request, record.traceparent),)

    def evaluated(self, asked: Evaluate, verdict: Verdict | None) -> Sequence[Effect]:
        """Write the verdict; None when none could be come to, and nothing will be shown."""
        if self._under_way.pop(asked.place, None) is None:
            return ()
        return (Done(asked.place) if verdict is None else Write(STREAMS, verdict, asked.traceparent, asked.place),)

    def unwritten(self, request_id: str) -> None:
        """Its verdict did not reach the log: whoever reads the record again gives it one."""
        self._judged.pop(request_id, None)
