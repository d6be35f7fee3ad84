"""Decide which request runs next, which is refused and which is stopped. No I/O, no clock."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from schemas.registry import RoleName
from schemas.requests import Request
from schemas.side_events import Cancel
from schemas.stream import ErrorClass, InputGate, OutputCheck
from schemas.topics import Topic
from services.worker.engine import EngineError

RecentKey = TypeVar("RecentKey", bound=Hashable)

MAX_REMEMBERED: Final = 10_000
"""Limit on the remembered cancels and on the remembered requests; the oldest are dropped first."""

BATCH_SHARE: Final = 0.75
"""Share of the slots that batch executions may have; the rest is free for a burst of interactive ones."""

CANCEL_MEMORY_US: Final = 600_000_000
"""How long a cancel is remembered, for a request that is read after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one worker process.

    Attributes:
        name: Name of the service in the registry; also its consumer group.
        topic: Topic of its requests.
        batch: Topic of requests that take the slots that interactive ones leave; None for none.
        slots: Maximum number of concurrent executions; 0 takes the engine's capacity.
        batch_slots: Maximum number of these slots for the batch lane; 0 takes three quarters.
        queue: Accepted requests that may wait for a slot; above that the topics are paused.
        drain_s: How long what runs may take to finish when the process is asked to stop.
        input_gate: ``off`` marks the log: text may be shown before any verdict.
        output_check: ``off`` marks the log: no safety service checks the answers.
        instance: Id for static group membership, unique within the group; None for none.
    """

    name: RoleName
    topic: Topic
    batch: Topic | None = None
    slots: int = 0
    batch_slots: int = 0
    queue: int = 256
    drain_s: float = 20.0
    input_gate: InputGate = "off"
    output_check: OutputCheck = "off"
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request is not answered completely; see ``schemas.stream.Failed``."""

    error_class: ErrorClass
    message: str
    retryable: bool
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> "Refusal":
        return cls(error.error_class, str(error), error.retryable, error.param)


STOPPING: Final = Refusal("engine_dead", "the worker stopped before the answer was complete", retryable=True)
"""``engine_dead``, because another attempt on the self-hosted engines helps, as another worker takes it."""

ENGINE_DIED: Final = Refusal("engine_dead", "the engine died", retryable=True)


class RecordPlace(NamedTuple):
    """Where a request is on the log."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request and the state of its execution.

    Attributes:
        request: The request as read.
        run: Unique id of the execution.
        traceparent: W3C Trace Context of the request.
        batch: Whether it was read from the batch topic.
        accepted_us: When it was accepted, by ``steady_us``.
        received_us: When the request was received, on the clock of ``accepted_us``: its deadlines count from here.
        begun: Whether its execution has begun, so that its task can be cancelled.
        stopped: Why its execution must stop; None while it need not.
        over: Whether its last event is written or being written: nothing can stop it any more.
        place: The record of the request; None in tests of other things.
        taken: Whether the broker has its first event: its record need not be read again.
    """

    request: Request
    run: str
    traceparent: str | None
    batch: bool
    accepted_us: int
    received_us: int
    begun: bool = False
    stopped: Refusal | None = None
    over: bool = False
    place: RecordPlace | None = None
    taken: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @property
    def attempt(self) -> int:
        return self.request.attempt

    @property
    def stoppable(self) -> bool:
        """Whether stopping it still has an effect."""
        return self.stopped is None and not self.over

    @property
    def expires_us(self) -> int:
        """When its request must be closed, in microseconds since the epoch."""
        return self.received_us + self.request.deadlines.total_ms * 1_000


class RecentKeys(Generic[RecentKey]):
    """The newest ``limit`` keys, each with the time when it was last added."""

    __slots__ = ("_limit", "_seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: OrderedDict[RecentKey, int] = OrderedDict()

    def add(self, key: RecentKey, now_us: int) -> None:
        self._seen[key] = now_us
        self._seen.move_to_end(key)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def discard(self, key: RecentKey) -> None:
        self._seen.pop(key, None)

    def __contains__(self, key: RecentKey) -> bool:
        return key in self._seen

    def at(self, key: RecentKey) -> int | None:
        """Return when the key was last added; None if it is not remembered."""
        return self._seen.get(key)


class Scheduler:
    """The queue of accepted requests and the set of running executions.

    Interactive requests go first. Batch requests fill what is left, ``batch_slots`` at most. Where there are several
    slots, one stays free for the next interactive request.

    Args:
        slots: Maximum number of concurrent executions.
        batch_slots: Maximum number of these slots for the batch lane; 0 takes three quarters.
        preempts: See ``Engine``: batch executions take no slot from interactive ones.
        output_check: Whether a safety service checks the answers.
        resolve: The engine's ``resolve``.
    """

    def __init__(
        self,
        *,
        slots: int,
        output_check: OutputCheck,
        resolve: Callable[[str], str],
        batch_slots: int = 0,
        preempts: bool = False,
    ) -> None:
        self._slots = slots
        self._batch_slots = most_batch(slots, batch_slots)
        self._preempts = preempts
        self._running_batch = 0
        self._checked = output_check == "on"
        self._resolve = resolve
        self._waiting: deque[Ticket] = deque()
        self._waiting_batch: deque[Ticket] = deque()
        self._running: dict[tuple[str, int], Ticket] = {}
        self._seen: RecentKeys[tuple[str, int]] = RecentKeys(MAX_REMEMBERED)
        self._cancelled: RecentKeys[tuple[str, int | None]] = RecentKeys(MAX_REMEMBERED)

    @property
    def running(self) -> int:
        """Number of executions."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of accepted requests that wait for a slot."""
        return len(self._waiting) + len(self._waiting_batch)

    @property
    def batch_may_start(self) -> bool:
        """Whether batch work may start: no interactive request waits, and one slot would stay free for the next."""
        free = len(self._running) < max(1, self._slots - 1)
        return not self._waiting and free and self._running_batch < self._batch_slots

    @property
    def _interactive_may_start(self) -> bool:
        return len(self._running) - (self._running_batch if self._preempts else 0) < self._slots

    def accept(self, ticket: Ticket, now_us: int) -> Refusal | Literal["waits", "known"]:
        """Queue a request; ``known`` means that this attempt was accepted before (a retry has another number)."""
        request = ticket.request
        key = (request.request_id, request.attempt)
        if key in self._seen:
            return "known"
        self._seen.add(key, now_us)
        refusal = self._refusal(request, now_us)
        if refusal is not None:
            return refusal
        (self._waiting_batch if ticket.batch else self._waiting).append(ticket)
        return "waits"

    def next(self, now_us: int, *, batch: bool = True) -> tuple[Ticket, Refusal | None] | None:
        """Return the next request to start, or one that expired with its refusal; None when nothing can start.

        Args:
            now_us: The current time.
            batch: Whether requests of the batch lane may start.
        """
        if self._waiting and self._interactive_may_start:
            ticket = self._waiting.popleft()
        elif batch and self._waiting_batch and self.batch_may_start:
            ticket = self._waiting_batch.popleft()
        else:
            return None
        if now_us >= ticket.expires_us:
            total_ms = ticket.request.deadlines.total_ms
            return ticket, Refusal("timeout", f"the deadline of {total_ms} ms passed in the queue", retryable=False)
        self._running[ticket.request.request_id, ticket.request.attempt] = ticket
        self._running_batch += ticket.batch
        return ticket, None

    def release(self, ticket: Ticket) -> None:
        """Free the slot of an execution that has ended."""
        del self._running[ticket.request.request_id, ticket.request.attempt]
        self._running_batch -= ticket.batch

    def cancel(self, event: Cancel, now_us: int) -> tuple[list[Ticket], list[Ticket]]:
        """Apply a cancel, and remember it for a request that is read later.

        Returns:
            The waiting requests that were dropped, and the executions to stop; ``stopped`` of each is set.
        """
        self._cancelled.add((event.request_id, event.attempt), now_us)
        refusal = _cancelled(event.reason)

        def matches(ticket: Ticket) -> bool:
            return ticket.request.request_id == event.request_id and event.attempt in {None, ticket.request.attempt}

        dropped = [each for each in (*self._waiting, *self._waiting_batch) if matches(each)]
        stopped = [each for each in self._running.values() if matches(each) and each.stoppable]
        for ticket in dropped:
            (self._waiting_batch if ticket.batch else self._waiting).remove(ticket)
        for ticket in (*dropped, *stopped):
            ticket.stopped = refusal
        return dropped, stopped

    def hand_back(self, other: Callable[[Ticket], bool]) -> list[Ticket]:
        """Drop the waiting requests that are another worker's now, and forget that they were accepted. Return them."""
        dropped = [each for each in (*self._waiting, *self._waiting_batch) if other(each)]
        for ticket in dropped:
            (self._waiting_batch if ticket.batch else self._waiting).remove(ticket)
            self._seen.discard((ticket.request_id, ticket.attempt))
        return dropped

    def stop_all(self, refusal: Refusal) -> list[Ticket]:
        """Return the executions to stop, with ``stopped`` of each set."""
        stopped = [each for each in self._running.values() if each.stoppable]
        for ticket in stopped:
            ticket.stopped = refusal
        return stopped

    def _refusal(self, request: Request, now_us: int) -> Refusal | None:
        for key in ((request.request_id, request.attempt), (request.request_id, None)):
            at_us = self._cancelled.at(key)
            if at_us is not None and now_us - at_us < CANCEL_MEMORY_US:
                return _cancelled("before it was read")
        mode = request.delivery.mode
        if mode != "optimistic" and not self._checked:
            return Refusal(
                "bad_request",
                f"delivery {mode!r} shows only text that a safety service has cleared, and no such service checks here"
                " (RAILBUS_OUTPUT_CHECK=off)",
                retryable=False,
            )
        try:
            self._resolve(request.model)
        except EngineError as error:
            return Refusal.of(error)
        return None


def most_batch(slots: int, batch_slots: int) -> int:
    """Return how many of the slots the batch lane may have; at least one."""
    return min(slots, batch_slots or max(1, int(slots * BATCH_SHARE)))


def _cancelled(why: str) -> Refusal:
    return Refusal("cancelled", f"cancelled: {why}", retryable=False)
