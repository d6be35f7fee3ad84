"""The requests of one partition: a fold of its topics, and what is owed to each request. Pure."""

from typing import Final

from schemas.base import AnyEvent, Event
from schemas.books import Account, Attached, Cancel, Detached
from schemas.requests import Request
from schemas.stream import Chunk, Cutover, Failed, Finished, StreamEvent
from services.processor import Write
from services.router.alarms import Alarms
from services.router.case import Case, Stamp
from services.router.decide import decide, next_alarm_us, turn_away
from services.router.means import Means
from services.router.policy import Policy
from services.router.triggers import falls_back, has_clock, judgement, price

Writes = list[Write]
NOTHING: Final[Writes] = []

SHORTEST_WAIT_US: Final = 1_000
"""An alarm rings at least this much later than the last one: nothing can make the router spin."""


class Shard:
    """One partition. Until it has caught up with the log it only folds; then it decides.

    Attributes:
        cases: Open requests, and closed ones whose account is not on the log yet.
        deciding: Whether it has caught up.
    """

    def __init__(self, policy: Policy, means: Means, source: str) -> None:
        self.cases: dict[str, Case] = {}
        self.deciding = False
        self._policy = policy
        self._means = means
        self._source = source
        self._known_us = 0  # the clock, as far as it was told: decisions by the clock never run ahead of what was read
        self._alarms = Alarms()
        self._done: dict[str, int] = {}
        self._ledger = means.budget.open()

    def alarm_us(self, now_us: int) -> int | None:
        """When the clock alone changes what is owed to a request; exact where it is not after ``now_us``."""
        while (first := self._alarms.first) is not None:
            at_us, request_id = first
            case = self.cases.get(request_id)
            due_us = None if case is None else self._due_us(case)
            if at_us > now_us or (due_us is not None and due_us <= at_us):
                return at_us
            self._alarms.drop_first()
            if case is not None and due_us is not None:
                case.wake_us = due_us
                self._alarms.set(due_us, request_id)
        return None

    def read(self, event: AnyEvent, traceparent: str | None, at_us: int, now_us: int) -> Writes:
        """Fold the next event of the partition, which was appended at ``at_us``."""
        if not isinstance(event, Event) or isinstance(event, Cancel):
            return NOTHING
        case = self.cases.get(event.request_id)
        if case is None:
            if event.request_id in self._done:
                self._count(event, at_us)
                return NOTHING
            case = self.cases[event.request_id] = Case(event.request_id, event.tenant, at_us)
            if self.deciding and isinstance(event, Request) and len(self.cases) > self._policy.max_open:
                case.on_request(event, traceparent, at_us)
                return [turn_away(case, self._policy, self._stamp(now_us))]
        match event:
            case Chunk():
                quiet = case.screen.heard
                case.on_stream(event, at_us, self._policy.window_us)
                if quiet and not case.screen.over:
                    return NOTHING
            case Request():
                self._count(event, at_us)
                self._on_request(case, event, traceparent, at_us, now_us)
            case Attached() | Detached():
                case.on_receipt(event, at_us)
            case Account():
                self._finish(case, now_us)
                return NOTHING
            case Cutover():
                self._on_cutover(case, event, at_us)
            case StreamEvent():
                self._on_stream(case, event, at_us)
        return self._look(case, now_us) if self.deciding else NOTHING

    def catch_up(self, known_us: int, now_us: int) -> Writes:
        """Decide from now on, first about all that was folded."""
        self.deciding = True
        self._known_us = known_us
        for case in self.cases.values():
            case.judged = case.judged or case.screen.heard  # how soon it was heard, only its router of then could tell
        return [write for case in tuple(self.cases.values()) for write in self._look(case, now_us)]

    def tick(self, known_us: int, now_us: int) -> Writes:
        """Decide what the clock alone brings about up to ``known_us``: everything appended before it was read."""
        self._known_us = max(self._known_us, known_us)
        writes: Writes = []
        for request_id in self._alarms.ring(self._known_us):
            case = self.cases.get(request_id)
            if case is not None:
                case.wake_us = 0
                writes += self._look(case, now_us)
        return writes

    def knows(self, request_id: str) -> bool:
        """Whether a readable event named this request."""
        case = self.cases.get(request_id)
        return request_id in self._done or (case is not None and (case.known or case.screen.closed is not None))

    def give_up(self) -> None:
        """Another router has the partition now."""
        for case in self.cases.values():
            self._release(case)
        self._means.budget.close(self._ledger)

    def _count(self, event: Event, at_us: int) -> None:
        """For the budget. While the log is folded, an account may be read before the events that led to it."""
        if isinstance(event, Request) and event.attempt == 1:
            self._ledger.ask(at_us)
        elif isinstance(event, Cutover) and event.target == "vertex":
            self._ledger.spend(0.0, at_us)

    def _on_request(self, case: Case, request: Request, traceparent: str | None, at_us: int, now_us: int) -> None:
        if not case.on_request(request, traceparent, at_us):
            return
        policy, means = self._policy, self._means
        case.keep(request, prompt=False)
        if falls_back(case, policy) and now_us < case.received_us + policy.total_us(case.deadlines):
            case.keep(request, prompt=means.keep(case.prompt_chars))
            if self.deciding and has_clock(case, policy):
                admitted = means.breaker.admits(now_us)
                case.straight, case.probe = admitted == "no", admitted == "probe"

    def _on_cutover(self, case: Case, cutover: Cutover, at_us: int) -> None:
        case.on_stream(cutover, at_us, self._policy.window_us)
        self._ledger.release(case.request_id)
        if cutover.target == "vertex" and case.cutovers.get(cutover.attempt) is cutover:
            self._ledger.spend(price(case, self._policy), at_us)

    def _on_stream(self, case: Case, event: StreamEvent, at_us: int) -> None:
        case.on_stream(event, at_us, self._policy.window_us)
        if isinstance(event, Finished | Failed):
            self._on_end(case, event.attempt)

    def _on_end(self, case: Case, attempt: int) -> None:
        """A cloud attempt's price is known now."""
        cutover, book = case.cutovers.get(attempt), case.books[attempt]
        if cutover is not None and cutover.target == "vertex" and book.ended:
            more = self._policy.prices.of(book.usage) - price(case, self._policy)
            self._ledger.correct(more, case.cut_us[attempt])

    def _look(self, case: Case, now_us: int) -> Writes:
        known_us = self._known_us
        if not case.known and case.screen.closed is None and known_us >= case.opened_us + self._policy.window_us:
            self._finish(case, now_us)
            return NOTHING
        if not case.judged and (served := judgement(case, known_us, self._policy)) is not None:
            case.judged = True
            self._means.breaker.judge(now_us, served=served, probe=case.probe)
        writes = decide(case, known_us, self._policy, self._ledger, self._stamp(now_us))
        alarm_us = self._due_us(case)
        if not case.wake_us or alarm_us < case.wake_us:
            case.wake_us = alarm_us
            self._alarms.set(alarm_us, case.request_id)
        return writes

    def _due_us(self, case: Case) -> int:
        return max(next_alarm_us(case, self._known_us, self._policy), self._known_us + SHORTEST_WAIT_US)

    def _stamp(self, now_us: int) -> Stamp:
        return Stamp(now_us, self._source)

    def _finish(self, case: Case, now_us: int) -> None:
        """Nothing is owed any more. The id is remembered while late events could still come."""
        self._release(case)
        del self.cases[case.request_id]
        self._done[case.request_id] = now_us + self._policy.window_us
        while self._done:
            oldest = next(iter(self._done))
            if self._done[oldest] > now_us:
                break
            del self._done[oldest]

    def _release(self, case: Case) -> None:
        self._ledger.release(case.request_id)
        if case.kept:
            case.kept = False
            self._means.drop(case.prompt_chars)
