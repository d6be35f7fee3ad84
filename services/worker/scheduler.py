"""Decide which requests to start, refuse and stop. This module does no I/O and reads no clock."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from schemas.registry import RoleName
from schemas.requests import Request
from schemas.side_events import Cancel
from schemas.stream import ErrorClass, InputGate, OutputCheck
from schemas.topics import DAY_MS, Topic
from services.worker.engine import EngineError

RecentKey = TypeVar("RecentKey", bound=Hashable)

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered requests. The oldest are dropped first."""

MAX_CANCELS: Final = 100_000
"""Maximum number of remembered cancels. The oldest are dropped first. This number takes about 30 MB."""

BATCH_SHARE: Final = 0.75
"""Maximum share of the slots for batch executions. The other slots are free for a burst of interactive requests."""

CANCEL_MEMORY_US: Final = DAY_MS * 1_000
"""Time in microseconds for which a cancel is remembered, because the cancelled request may be read later. A batch
request may wait on the log until its deadline, which is at most a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one worker process.

    Attributes:
        name: Name of the service and of its consumer group.
        topic: Topic of interactive requests.
        batch: Topic of batch requests; None if there is none.
        slots: Maximum number of concurrent runs; 0 means the engine's capacity.
        batch_slots: Maximum number of concurrent runs of batch requests; 0 means three quarters of the slots.
        queue: Maximum number of accepted requests that wait for a slot. The worker stops reading requests while this
            many wait.
        drain_s: How many seconds the current runs may take to finish after the process was told to stop.
        input_gate: With ``off``, each ``Started`` event says that text may be shown before the verdict.
        output_check: With ``off``, each ``Started`` event says that no safety service checks the answer.
        instance: Id for static membership in the consumer group; None for dynamic membership.
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
    """The reason for a ``Failed`` event. The fields have the same meaning as in ``Failed``."""

    error_class: ErrorClass
    message: str
    retryable: bool
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> "Refusal":
        return cls(error.error_class, str(error), error.retryable, error.param)


STOPPING: Final = Refusal("engine_dead", "the worker stopped before the answer was complete", retryable=True)
"""The refusal of a request that this worker cannot complete, because the worker stops. Because of the error class
``engine_dead``, the router starts another attempt on the self-hosted engines, which another worker executes."""

ENGINE_DIED: Final = Refusal("engine_dead", "the engine died", retryable=True)


class RecordPlace(NamedTuple):
    topic: str
    partition: int
    offset: int


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request and the state of its run.

    Attributes:
        run: Id of the run.
        traceparent: W3C Trace Context of the request.
        batch: Whether the request was read from the batch topic.
        accepted_us: When this worker accepted the request, in microseconds since the epoch.
        received_us: When an edge received the request, in microseconds since the epoch. Deadlines count from this time.
        begun: Whether the run's task has started.
        stopped: Why the run must stop; None if the run need not stop.
        over: Whether the run has ended. Its last event may still have to be written.
        place: Topic, partition and offset of the request's record; None only in tests.
        taken: True after the broker has acknowledged the first event of the run, or after the write has failed. From
            then on, the offset of the request's record may be committed.
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
        return self.stopped is None and not self.over

    @property
    def expires_us(self) -> int:
        return self.received_us + self.request.deadlines.total_ms * 1_000


class RecentKeys(Generic[RecentKey]):
    """Remembers the newest keys, at most ``limit``, and when each of them was added."""

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
        """Return the time in microseconds at which the key was last added; None if the key is unknown."""
        return self._seen.get(key)


class Scheduler:
    """Queues accepted requests, and decides when each of them starts.

    A batch request starts only if no interactive request waits. If there are several slots, batch requests leave one
    slot free.

    Args:
        slots: Maximum number of concurrent runs.
        batch_slots: Maximum number of concurrent runs of batch requests; 0 means three quarters of ``slots``.
        preempts: Whether the engine can pause a batch run to free its slot.
        output_check: ``on`` means that a safety service checks the answers. With ``off``, requests with the delivery
            modes ``windowed`` and ``gated`` are refused.
        resolve: Called with the model of a request. If it raises ``EngineError``, the request is refused.
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
        self._unacknowledged: set[Ticket] = set()
        # The records that may not be committed yet, by attempt, and the attempt of each such record.
        self._places: dict[tuple[str, int], list[RecordPlace]] = {}
        self._attempts: dict[RecordPlace, tuple[str, int]] = {}
        self._seen: RecentKeys[tuple[str, int]] = RecentKeys(MAX_REMEMBERED)
        self._cancelled: RecentKeys[tuple[str, int | None]] = RecentKeys(MAX_CANCELS)

    @property
    def unacknowledged(self) -> Collection[Ticket]:
        """The requests that were started, refused or cancelled, and for which ``acknowledged()`` was not called yet."""
        return self._unacknowledged

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._waiting_batch)

    @property
    def batch_may_start(self) -> bool:
        # One slot stays free for the next interactive request.
        free = len(self._running) < max(1, self._slots - 1)
        return not self._waiting and free and self._running_batch < self._batch_slots

    @property
    def _interactive_may_start(self) -> bool:
        return len(self._running) - (self._running_batch if self._preempts else 0) < self._slots

    def accept(self, ticket: Ticket, now_us: int) -> Refusal | Literal["waits", "known", "unacknowledged"]:
        """Queue a request, unless it must be refused or the same attempt was read before.

        An attempt that ``hand_back`` returned counts as new.

        Returns:
            ``waits``: The request was queued.
            ``unacknowledged``: The attempt was read before, but ``acknowledged()`` was not called for it yet. The
                caller must not commit the offset of the record until ``acknowledged()`` returns the record.
            ``known``: The attempt was read before, and ``acknowledged()`` was called for it. The caller may commit the
                offset of the record.
            A ``Refusal``: The caller must refuse the request.
        """
        request = ticket.request
        key = (request.request_id, request.attempt)
        if key in self._seen:
            # An attempt can be read again if this worker lost and regained its partition, if its record was written
            # twice, or if the broker lost its newest records. In the last case, its record may have another offset now.
            if key not in self._places:
                return "known"
            self._hold(ticket.place, key)
            return "unacknowledged"
        self._seen.add(key, now_us)
        self._hold(ticket.place, key)
        refusal = self._refusal(request, now_us)
        if refusal is not None:
            self._unacknowledged.add(ticket)
            return refusal
        (self._waiting_batch if ticket.batch else self._waiting).append(ticket)
        return "waits"

    def next(self, now_us: int, *, batch: bool = True) -> tuple[Ticket, Refusal | None] | None:
        """Take the next request from the queue. Return None if no request can start now.

        If the request has expired, the result has a ``Refusal``, and the caller must refuse the request.

        Args:
            now_us: The current time in microseconds.
            batch: Whether batch requests may start.
        """
        if self._waiting and self._interactive_may_start:
            ticket = self._waiting.popleft()
        elif batch and self._waiting_batch and self.batch_may_start:
            ticket = self._waiting_batch.popleft()
        else:
            return None
        self._unacknowledged.add(ticket)
        if now_us >= ticket.expires_us:
            total_ms = ticket.request.deadlines.total_ms
            return ticket, Refusal("timeout", f"the deadline of {total_ms} ms passed in the queue", retryable=False)
        self._running[ticket.request.request_id, ticket.request.attempt] = ticket
        self._running_batch += ticket.batch
        return ticket, None

    def acknowledged(self, ticket: Ticket) -> list[RecordPlace]:
        """Remove a request from ``unacknowledged``. Return its records. Their offsets may be committed now."""
        self._unacknowledged.discard(ticket)
        return self._drop_places(ticket)

    def release(self, ticket: Ticket) -> None:
        del self._running[ticket.request.request_id, ticket.request.attempt]
        self._running_batch -= ticket.batch

    def cancel(self, event: Cancel, now_us: int) -> tuple[list[Ticket], list[Ticket]]:
        """Cancel the requests that the event names.

        Also remember the event for at most ``CANCEL_MEMORY_US``. During this time, ``accept`` refuses the requests that
        the event names.

        Returns:
            Two lists of tickets of the cancelled requests: those that were waiting, and those that were running.
        """
        # The caller must refuse the waiting requests, and cancel the tasks of the running ones that have ``begun``.
        self._cancelled.add((event.request_id, event.attempt), now_us)
        refusal = _cancelled(event.reason)

        def matches(ticket: Ticket) -> bool:
            return ticket.request.request_id == event.request_id and event.attempt in {None, ticket.request.attempt}

        dropped = [each for each in (*self._waiting, *self._waiting_batch) if matches(each)]
        stopped = [each for each in self._running.values() if matches(each) and each.stoppable]
        for ticket in dropped:
            (self._waiting_batch if ticket.batch else self._waiting).remove(ticket)
        self._unacknowledged.update(dropped)
        for ticket in (*dropped, *stopped):
            ticket.stopped = refusal
        return dropped, stopped

    def hand_back(self, other: Callable[[Ticket], bool]) -> list[Ticket]:
        """Remove and return the waiting requests for which ``other`` returns true. Another worker will run them."""
        dropped = [each for each in (*self._waiting, *self._waiting_batch) if other(each)]
        for ticket in dropped:
            (self._waiting_batch if ticket.batch else self._waiting).remove(ticket)
            self._seen.discard((ticket.request_id, ticket.attempt))
            self._drop_places(ticket)
        return dropped

    def stop_all(self, refusal: Refusal) -> list[Ticket]:
        """Mark all running requests that can be stopped: set ``Ticket.stopped`` to ``refusal``.

        Return their tickets.
        """
        # The caller must cancel the tasks of those that have ``begun``.
        stopped = [each for each in self._running.values() if each.stoppable]
        for ticket in stopped:
            ticket.stopped = refusal
        return stopped

    def _hold(self, place: RecordPlace | None, key: tuple[str, int]) -> None:
        if place is None:
            return
        before = self._attempts.get(place)
        if before is not None:
            self._places[before].remove(place)  # the same record, or one that the broker lost: its offset is reused
        self._attempts[place] = key
        self._places.setdefault(key, []).append(place)

    def _drop_places(self, ticket: Ticket) -> list[RecordPlace]:
        places = self._places.pop((ticket.request_id, ticket.attempt), [])
        for place in places:
            del self._attempts[place]
        return places

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
    return min(slots, batch_slots or max(1, int(slots * BATCH_SHARE)))


def _cancelled(why: str) -> Refusal:
    return Refusal("cancelled", f"cancelled: {why}", retryable=False)
