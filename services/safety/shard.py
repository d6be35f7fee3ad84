"""The requests of one partition. While it reads back what it missed it only listens; then it says what is unsaid.

Pure.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from schemas.stream import Closed, Started, StreamEvent, Verdict
from services.policy import Policy
from services.safety.case import MAY_GO_ON, Case
from services.safety.looks import Look, Out
from services.safety.verdicts import Stamp

MAX_OPEN: Final = 20_000
"""Open requests of a partition. The oldest is dropped for one more: its text stays uncleared, which shows nothing."""

MAX_CLOSED: Final = 20_000
"""Closed requests that are remembered, so that a late event does not open them again."""

GRACE_US: Final = 60_000_000
"""How long after its latest possible end a request that was never closed is kept."""


class Said(NamedTuple):
    """What a case says, and for which attempt."""

    case: Case
    attempt: int
    out: Out


class Shard:
    """One partition.

    Attributes:
        cases: Open requests by id, oldest first.
        queued: Events that were taken in and not read yet.
        listening: Whether the log has not been caught up with.
        lost: Whether the partition is another member's now.
        read_us: When the newest event that was read had been appended, microseconds since the epoch.
    """

    __slots__ = ("_closed", "_held", "cases", "listening", "lost", "queued", "read_us")

    def __init__(self, *, listening: bool) -> None:
        self.cases: OrderedDict[str, Case] = OrderedDict()
        self.queued = 0
        self.listening = listening
        self.lost = False
        self.read_us = 0
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._held: list[Said] = []

    def case_of(self, event: StreamEvent, policy: Policy, stamp: Stamp) -> Case | None:
        """The request's case; a new one for its first event. None when there is nothing to check."""
        request_id = event.request_id
        case = self.cases.get(request_id)
        if case is not None or request_id in self._closed:
            return case
        if isinstance(event, Closed) and event.cause not in MAY_GO_ON:
            self._remember_closed(request_id)
        if not isinstance(event, Started | Verdict):
            return None
        longest_us = policy.document.deadlines.total_ms[1] * 1_000
        expires_us = self.read_us + longest_us + GRACE_US
        case = self.cases[request_id] = Case(request_id, event.tenant, policy, expires_us, stamp)
        if len(self.cases) > MAX_OPEN:
            self.cases.popitem(last=False)
        return case

    def hold(self, case: Case, attempt: int, outs: Iterable[Out]) -> None:
        """Keep what a case says while listening."""
        self._held.extend(Said(case, attempt, out) for out in outs)

    def caught_up(self) -> list[Said]:
        """The log was read up to where it ended: returns what was held back and is not on it."""
        self.listening = False
        for case in list(self.cases.values()):
            case.drop_settled()
            self.forget_if_over(case)
        held, self._held = self._held, []
        return [one for one in held if _is_due(one)]

    def forget_if_over(self, case: Case) -> None:
        """A request that is closed and checked needs no state."""
        if case.over and self.cases.pop(case.request_id, None) is not None:
            self._remember_closed(case.request_id)

    @property
    def expires_us(self) -> int | None:
        """When the oldest request must have ended long ago; None without any."""
        return next(iter(self.cases.values())).expires_us if self.cases else None

    def expire(self, known_us: int) -> int:
        """Forget requests that must have ended long ago; returns how many."""
        late = [request_id for request_id, case in self.cases.items() if case.expires_us <= known_us]
        for request_id in late:
            del self.cases[request_id]
        return len(late)

    def _remember_closed(self, request_id: str) -> None:
        self._closed[request_id] = None
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)


def _is_due(one: Said) -> bool:
    case, attempt, out = one
    if case.settled(attempt):
        return False
    return case.checks(attempt) if isinstance(out, Look) else case.new(out)
