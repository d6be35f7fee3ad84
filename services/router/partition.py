"""The requests of one partition number, and a timer for each request. No I/O, no clock.

For example, partition number 3 holds the requests whose events are in partition 3 of each topic.
"""

import heapq
from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple

from msgspec import structs

from schemas.base import Event
from schemas.requests import Lane, Request
from schemas.side_events import Account, Attached, Cancel, Detached
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, StreamEvent
from services.bus import Received
from services.processor import Write
from services.router.config import RouterConfig
from services.router.decide.cutovers import health_outcome, price
from services.router.decide.decide import close_too_many_open, decide, next_alarm_us
from services.router.state.breaker import Breaker
from services.router.state.budget import AttemptBudgets, FallbackBudget
from services.router.state.oldest_open import SPARE, OldestOpen
from services.router.state.request import EventContext, RequestState

Writes = list[Write]
NO_WRITES: Final[Writes] = []

MAX_REJECTED: Final = 10_000
"""Maximum number of unreadable requests of a partition that are closed when the partition has caught up with the log.

Every unreadable request gets a dead letter, even beyond this number.
"""

SHORTEST_WAIT_US: Final = 1_000
"""A timer is due at least this many microseconds after the time up to which the log was read. So a timer that stays due
does not keep the router busy."""

KNOWN_US: Final = 30_000_000
"""While a request is open, the log is read to its end at least once in this many microseconds.

``Account.open_since`` is never later than the time up to which the log was read. Therefore that time must be recent.
"""


class _Done(NamedTuple):
    """A finished request.

    Attributes:
        until_us: The request can be forgotten when the log has been read up to this time.
        lane: Lane of the request; None if unknown.
        uncounted_usd: Cost of the request's cloud attempts that the budget has not counted yet, in US dollars. It is
            above 0 only if the ``Account`` was read before the ``Cutover`` to the cloud. The budget counts the cost
            when the ``Cutover`` is read.
    """

    until_us: int
    lane: Lane | None
    uncounted_usd: float


class SharedResources:
    def __init__(self, config: RouterConfig, source: str) -> None:
        self.config = config
        self.source = source
        self.breaker = Breaker(config.breaker_trip)
        self.budget = FallbackBudget(config.limits)
        self.retry_budget = FallbackBudget(config.retry_limits)
        self._free_chars = config.prompt_chars

    def take_memory(self, chars: int, lane: Lane | None) -> bool:
        # A backlog of batch requests leaves room for the prompts of interactive ones.
        kept_free = self.config.prompt_chars // 4 if lane == "batch" else 0
        if chars > self._free_chars - kept_free:
            return False
        self._free_chars -= chars
        return True

    def release_memory(self, chars: int) -> None:
        self._free_chars += chars


class RouterPartition:
    """The requests of one partition number. All events of a request are in partitions with the same number.

    Until ``catch_up`` is called, events are read and nothing is decided.

    Attributes:
        requests: Open requests, and closed requests whose ``Account`` was not read back from the log yet.
        rejected: ``Closed`` events for unreadable requests. ``RouterCore`` decides after ``catch_up`` which of them to
            write.
    """

    def __init__(self, shared: SharedResources) -> None:
        self.requests: dict[str, RequestState] = {}
        self.deciding = False
        self.rejected: deque[Closed] = deque(maxlen=MAX_REJECTED)
        self._shared = shared
        self._known_us = 0  # everything appended before this time was read; no later deadline counts as passed
        # A heap. A timer that has moved is corrected when it is popped. A timer of a finished request may stay for a
        # day, so ``_set_timer`` drops such timers when there are many.
        self._timers: list[tuple[int, str]] = []
        self._done: dict[str, _Done] = {}
        self._batch_open = 0
        self._oldest = OldestOpen()
        self._budgets = AttemptBudgets(shared.budget.open(), shared.retry_budget.open(), shared.breaker)

    def alarm_us(self, now_us: int) -> int | None:
        """Return when to call ``tick`` next, in microseconds since the epoch; None if there is no request."""
        if not self.requests:
            return None
        timer_us = self._timer_us(now_us)
        return min(self._known_us + KNOWN_US, self._known_us + KNOWN_US if timer_us is None else timer_us)

    def _timer_us(self, now_us: int) -> int | None:
        while self._timers:
            at_us, request_id = self._timers[0]
            if at_us > now_us:
                return at_us  # perhaps too early: a timer that was moved to a later time has its old time in the heap
            state = self.requests.get(request_id)
            due_us = None if state is None else self._due_us(state)
            if due_us is not None and due_us <= at_us:
                return at_us
            heapq.heappop(self._timers)
            if state is not None and due_us is not None:
                self._set_timer(state, due_us)
        return None

    def read(self, record: Received, event: Event, at_us: int, now_us: int) -> Writes:  # noqa: C901 - one case per kind
        traceparent, log_ms = record.traceparent, record.timestamp_ms
        if type(event) is Cancel:
            return NO_WRITES
        state = self.requests.get(event.request_id)
        if state is None:
            if event.request_id in self._done:  # at start, an account may be read before its request's other events
                self._read_late(event, at_us, now_us)
                return NO_WRITES
            config = self._shared.config
            state = self.requests[event.request_id] = RequestState(event.request_id, event.tenant, at_us, config)
            self._oldest.note(event.request_id, log_ms * 1_000, at_us)
        if self.deciding and isinstance(event, Request) and _is_new(state, event) and self._is_full(event):
            state.on_request(event, traceparent, at_us, log_ms)
            state.request = structs.replace(event, messages=())
            self._batch_open += state.lane == "batch"
            closing = close_too_many_open(state, EventContext(now_us, self._shared.source))
            self._set_timer(state, self._due_us(state))  # the broker may refuse the ``Closed``
            return [closing]
        match event:
            case Chunk():
                if not state.on_chunk(event, at_us, log_ms):
                    return NO_WRITES
            case Cleared(final=False):
                if not state.on_cleared(event, log_ms):
                    return NO_WRITES
            case Request():
                self._count_request(event, at_us)
                self._on_request(state, event, record, at_us, now_us)
            case Attached() | Detached():
                state.on_receipt(event, at_us)
            case Account():
                self._finish(state, now_us, event)
                return NO_WRITES
            case Cutover():
                self._on_cutover(state, event, at_us, log_ms)
            case Finished() | Failed():
                self._on_end(state, event, at_us, log_ms)
            case StreamEvent():
                state.on_stream(event, at_us, log_ms)
        return self._decide(state, now_us) if self.deciding else NO_WRITES

    def catch_up(self, known_us: int, now_us: int) -> Writes:
        """Return the decisions about all requests read so far. Before this call, ``read`` returns no decisions."""
        self.deciding = True
        self._known_us = known_us
        for state in self.requests.values():
            state.health_recorded |= state.screen.has_spoken  # the previous router has recorded it
        return [write for state in tuple(self.requests.values()) for write in self._decide(state, now_us)]

    def tick(self, known_us: int, now_us: int) -> Writes:
        """Return the decisions about requests whose timers are due.

        Args:
            known_us: The time up to which the log was read. Timers are compared with this time.
            now_us: The current time.
        """
        self._known_us = max(self._known_us, known_us)
        due: dict[str, None] = {}
        while self._timers and self._timers[0][0] <= self._known_us:
            due[heapq.heappop(self._timers)[1]] = None
        writes: Writes = []
        for request_id in due:
            state = self.requests.get(request_id)
            if state is not None:
                state.timer_us = 0
                writes += self._decide(state, now_us)
        return writes

    def knows(self, request_id: str) -> bool:
        """Return whether a ``Request``, a ``Started``, a ``Closed`` or an ``Account`` of this request was read."""
        state = self.requests.get(request_id)
        return request_id in self._done or (state is not None and (state.known or state.screen.closed is not None))

    def give_up(self) -> None:
        for state in self.requests.values():
            self._release(state)
        self._shared.budget.close(self._budgets.cloud)
        self._shared.retry_budget.close(self._budgets.retries)

    def _is_full(self, request: Request) -> bool:
        config = self._shared.config
        if request.lane == "batch":
            return self._batch_open >= config.max_batch_open
        return len(self.requests) - self._batch_open > config.max_open  # the request itself is in it already

    def _count_request(self, request: Request, at_us: int) -> None:
        if request.attempt == 1 and request.lane != "batch":  # a batch request adds to no budget
            self._budgets.cloud.add_request(at_us)
            self._budgets.retries.add_request(at_us)

    def _on_request(self, state: RequestState, request: Request, record: Received, at_us: int, now_us: int) -> None:
        if not state.on_request(request, record.traceparent, at_us, record.timestamp_ms):
            return
        self._oldest.note(state.request_id, record.timestamp_ms * 1_000, at_us)  # another event may have come first
        state.request = request
        self._batch_open += state.lane == "batch"
        self._count_retries(state, state.lane)
        for attempt in state.cloud_attempts:  # read before their estimated price was known
            if not state.record(attempt).ended:
                self._budgets.cloud.correct(price(state), state.cutover_us[attempt])
        if (state.may_fall_back or state.most_retries) and now_us < state.deadline_us:
            state.prompt_kept = self._shared.take_memory(state.prompt_chars, state.lane)
            if self.deciding and state.has_cloud_deadline:
                admitted = self._shared.breaker.admits(now_us)
                state.bypass, state.probe = admitted == "no", admitted == "probe"
        if not state.prompt_kept:
            state.request = structs.replace(request, messages=())

    def _on_cutover(self, state: RequestState, cutover: Cutover, at_us: int, log_ms: int) -> None:
        state.on_stream(cutover, at_us, log_ms)
        self._budgets.release(state.request_id)
        if state.cutovers.get(cutover.attempt) is not cutover:
            return
        if cutover.target == "vertex":
            self._budgets.cloud.spend(price(state), at_us)
        elif cutover.trigger != "mask" and state.lane == "interactive":
            self._budgets.retries.spend(0.0, at_us)

    def _count_retries(self, state: RequestState, lane: Lane | None) -> None:
        # Those that were read before the lane was known.
        if lane == "interactive":
            for attempt in state.retries:
                self._budgets.retries.spend(0.0, state.cutover_us[attempt])

    def _on_end(self, state: RequestState, event: Finished | Failed, at_us: int, log_ms: int) -> None:
        record = state.record(event.attempt)
        had_ended = record.ended
        state.on_stream(event, at_us, log_ms)
        if event.attempt in state.cloud_attempts and record.ended and not had_ended:
            difference = state.config.prices.of(event.usage) - price(state)
            self._budgets.cloud.correct(difference, state.cutover_us[event.attempt])

    def _decide(self, state: RequestState, now_us: int) -> Writes:
        known_us = self._known_us
        if not state.known and state.screen.closed is None and known_us >= state.opened_us + state.config.window_us:
            self._finish(state, now_us)
            return NO_WRITES
        if state.has_cloud_deadline and not state.health_recorded:
            self._record_health(state, now_us)
        writes = decide(state, known_us, self._budgets, EventContext(now_us, self._shared.source))
        due_us = self._due_us(state)
        if not state.timer_us or due_us < state.timer_us:
            self._set_timer(state, due_us)
        if state.screen.closed is not None:
            return [self._marked(write) for write in writes]
        return writes

    def _record_health(self, state: RequestState, now_us: int) -> None:
        served = health_outcome(state, self._known_us)
        if served is not None:
            state.health_recorded = True
            self._shared.breaker.record(now_us, served=served, probe=state.probe)

    def _marked(self, write: Write) -> Write:
        account = write.event
        if not isinstance(account, Account):
            return write
        since_us = self._oldest.mark_us(self.requests, account.request_id, self._known_us)
        return replace(write, event=structs.replace(account, open_since=since_us, breaker=self._shared.breaker.state))

    def _due_us(self, state: RequestState) -> int:
        return max(next_alarm_us(state, self._known_us), self._known_us + SHORTEST_WAIT_US)

    def _set_timer(self, state: RequestState, due_us: int) -> None:
        state.timer_us = due_us
        heapq.heappush(self._timers, (due_us, state.request_id))
        if len(self._timers) > 2 * len(self.requests) + SPARE:
            self._timers = list({timer for timer in self._timers if self._is_current(*timer)})
            heapq.heapify(self._timers)

    def _is_current(self, at_us: int, request_id: str) -> bool:
        state = self.requests.get(request_id)
        return state is not None and state.timer_us == at_us

    def _finish(self, state: RequestState, now_us: int, account: Account | None = None) -> None:
        self._release(state)
        lane, uncounted_usd = state.lane, 0.0
        if account is not None:
            if lane is None:
                lane = account.lane
                self._count_retries(state, lane)
            uncounted_usd = 0.0 if state.cloud_attempts else account.cost_usd
        self._batch_open -= state.lane == "batch"
        del self.requests[state.request_id]
        # More of its events may be read until the log was read beyond this time. That the clock has passed it is not
        # enough, because after an outage a router reads events long after they were appended.
        self._remember(state.request_id, _Done(now_us + state.config.window_us, lane, uncounted_usd))
        while self._done:
            oldest = next(iter(self._done))
            if self._done[oldest].until_us > self._known_us:
                break
            del self._done[oldest]

    def _read_late(self, event: Event, at_us: int, now_us: int) -> None:
        done = self._done[event.request_id]
        if isinstance(event, Request):
            self._count_request(event, at_us)
            # An edge that had no answer from the broker wrote it again, and a worker may start it again. So its events
            # may come later than those of the first record.
            self._remember(event.request_id, done._replace(until_us=now_us + self._shared.config.window_us))
        elif isinstance(event, Cutover) and event.target == "vertex":
            self._budgets.cloud.spend(done.uncounted_usd, at_us)
            self._done[event.request_id] = done._replace(uncounted_usd=0.0)
        elif isinstance(event, Cutover) and event.trigger != "mask" and done.lane != "batch":
            self._budgets.retries.spend(0.0, at_us)

    def _remember(self, request_id: str, done: _Done) -> None:
        self._done.pop(request_id, None)
        self._done[request_id] = done

    def _release(self, state: RequestState) -> None:
        self._budgets.release(state.request_id)
        if state.prompt_kept:
            state.prompt_kept = False
            self._shared.release_memory(state.prompt_chars)


def _is_new(state: RequestState, request: Request) -> bool:
    # Another event of the request, such as ``Attached``, may have been read first.
    return request.attempt == 1 and state.lane is None and state.screen.closed is None
