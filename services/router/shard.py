"""The requests of one partition: a fold of its topics, and what is owed to each request. Pure."""

from typing import Final

from schemas.base import Event
from schemas.books import Account, Attached, Cancel, Detached
from schemas.requests import Request
from schemas.stream import Chunk, Cutover, Failed, Finished
from schemas.wire import AnyEvent
from services.router.alarms import Alarms
from services.router.case import Case
from services.router.decide import decide, next_alarm_us, turn_away
from services.router.effects import Write
from services.router.means import Means
from services.router.policy import Policy
from services.router.triggers import falls_back, has_clock, judgement, price

Writes = list[Write]
NOTHING: Final[Writes] = []

SHORTEST_WAIT_US: Final = 1_000
"""An alarm rings at least this much later than now: nothing can make the router spin."""


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
        self._alarms = Alarms()
        self._done: dict[str, int] = {}
        self._ledger = means.budget.open()

    @property
    def next_alarm_us(self) -> int | None:
        """When ``tick`` should be called, microseconds since the epoch."""
        return self._alarms.next_us if self.deciding else None

    def read(self, event: AnyEvent, traceparent: str | None, now_us: int) -> Writes:
        """Folds the next event of the partition; what is to be written then."""
        if not isinstance(event, Event) or isinstance(event, Cancel):
            return NOTHING
        case = self.cases.get(event.request_id)
        if case is None:
            if event.request_id in self._done:
                self._count(event, now_us)
                return NOTHING
            case = self.cases[event.request_id] = Case(event.request_id, event.tenant, now_us)
            if self.deciding and isinstance(event, Request) and len(self.cases) > self._policy.max_open:
                case.on_request(event, traceparent, now_us)
                return [turn_away(case, now_us, self._policy, self._source)]
        match event:
            case Chunk():
                quiet = case.screen.heard
                case.on_stream(event, now_us, self._policy.window_us)
                if quiet and not case.screen.over:
                    return NOTHING
            case Request():
                self._count(event, now_us)
                self._on_request(case, event, traceparent, now_us)
            case Attached() | Detached():
                case.on_receipt(event, now_us)
            case Account():
                self._finish(case, now_us)
                return NOTHING
            case Cutover():
                self._on_cutover(case, event, now_us)
            case _:
                case.on_stream(event, now_us, self._policy.window_us)
                if isinstance(event, Finished | Failed):
                    self._on_end(case, event.attempt)
        return self._look(case, now_us) if self.deciding else NOTHING

    def catch_up(self, now_us: int) -> Writes:
        """The suffix of the log is folded: from now on the shard decides, first about all it found."""
        self.deciding = True
        return [write for case in tuple(self.cases.values()) for write in self._look(case, now_us)]

    def tick(self, now_us: int) -> Writes:
        """What the clock alone brings about."""
        writes: Writes = []
        for request_id in self._alarms.ring(now_us):
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

    def _count(self, event: Event, now_us: int) -> None:
        """For the budget. While the log is folded, an account may be read before the events that led to it."""
        if isinstance(event, Request) and event.attempt == 1:
            self._ledger.ask(min(event.at, now_us))
        elif isinstance(event, Cutover) and event.target == "vertex":
            self._ledger.spend(0.0, min(event.at, now_us))

    def _on_request(self, case: Case, request: Request, traceparent: str | None, now_us: int) -> None:
        if not case.on_request(request, traceparent, now_us):
            return
        policy, means = self._policy, self._means
        case.keep(request, prompt=False)
        if falls_back(case, policy) and now_us < case.received_us + policy.total_us(case.deadlines):
            case.keep(request, prompt=means.keep(case.prompt_chars))
            if self.deciding and has_clock(case, policy):
                admitted = means.breaker.admits(now_us)
                case.straight, case.probe = admitted == "no", admitted == "probe"

    def _on_cutover(self, case: Case, cutover: Cutover, now_us: int) -> None:
        case.on_stream(cutover, now_us, self._policy.window_us)
        self._ledger.release(case.request_id)
        if cutover.target == "vertex" and case.cutovers.get(cutover.attempt) is cutover:
            self._ledger.spend(price(case, self._policy), min(cutover.at, now_us))

    def _on_end(self, case: Case, attempt: int) -> None:
        """A cloud attempt's price is known now."""
        cutover, book = case.cutovers.get(attempt), case.books[attempt]
        if cutover is not None and cutover.target == "vertex" and book.ended:
            more = self._policy.prices.of(book.usage) - price(case, self._policy)
            self._ledger.correct(more, cutover.at)

    def _look(self, case: Case, now_us: int) -> Writes:
        if not case.known and case.screen.closed is None and now_us >= case.opened_us + self._policy.window_us:
            self._finish(case, now_us)
            return NOTHING
        if not case.judged and (served := judgement(case, now_us, self._policy)) is not None:
            case.judged = True
            self._means.breaker.judge(now_us, served=served, probe=case.probe)
        writes = decide(case, now_us, self._policy, self._ledger, self._source)
        alarm_us = max(next_alarm_us(case, now_us, self._policy), now_us + SHORTEST_WAIT_US)
        if not case.wake_us or alarm_us < case.wake_us:
            case.wake_us = alarm_us
            self._alarms.set(alarm_us, case.request_id)
        return writes

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
