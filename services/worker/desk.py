"""Which request runs next, which is refused, which is stopped. No I/O, no clock."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from schemas.books import Cancel
from schemas.requests import Request
from schemas.stream import Check, ErrorClass
from services.worker.engine import EngineError

Key = TypeVar("Key", bound=Hashable)

REMEMBERED: Final = 10_000
"""Cancels that came before their request, and requests seen: so many of each are remembered, the oldest go first."""

CANCEL_MEMORY_US: Final = 600_000_000
"""A cancel is remembered for ten minutes."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered, or not answered to its end; see ``schemas.stream.Failed``."""

    error_class: ErrorClass
    message: str
    retryable: bool
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> "Refusal":
        """As the engine says."""
        return cls(error.error_class, str(error), error.retryable, error.param)


STOPPING: Final = Refusal("unavailable", "the worker is stopping", retryable=True)
ENGINE_DIED: Final = Refusal("engine_dead", "the engine died", retryable=True)


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request on its way to an execution.

    Attributes:
        request: As it was read.
        run: The execution's id, unique.
        traceparent: W3C Trace Context of the request.
        batch: It came by the batch topic.
        accepted_us: When, microseconds since the epoch.
        begun: Its execution has begun, so that its task can be cancelled.
        stopped: Why its execution was told to stop, once it was.
        over: Its last event is written or being written: nothing can stop it any more.
    """

    request: Request
    run: str
    traceparent: str | None
    batch: bool
    accepted_us: int
    begun: bool = False
    stopped: Refusal | None = None
    over: bool = False

    @property
    def request_id(self) -> str:
        """The request's."""
        return self.request.request_id

    @property
    def tenant(self) -> str:
        """The request's."""
        return self.request.tenant

    @property
    def attempt(self) -> int:
        """The request's."""
        return self.request.attempt

    @property
    def stoppable(self) -> bool:
        """Whether it makes a difference to stop it."""
        return self.stopped is None and not self.over

    @property
    def expires_us(self) -> int:
        """When its request must be closed, microseconds since the epoch."""
        return self.request.at + self.request.deadlines.total_ms * 1_000


class Recent(Generic[Key]):
    """The last keys seen and when; at most ``limit``."""

    __slots__ = ("_limit", "_seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: OrderedDict[Key, int] = OrderedDict()

    def add(self, key: Key, now_us: int) -> None:
        """Sees a key."""
        self._seen[key] = now_us
        self._seen.move_to_end(key)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def __contains__(self, key: Key) -> bool:
        return key in self._seen

    def at(self, key: Key) -> int | None:
        """When the key was seen last."""
        return self._seen.get(key)


class Desk:
    """Accepts, orders, starts and stops.

    Args:
        slots: Most executions at once.
        output_check: Whether a safety service checks the answers.
        resolve: The engine's ``resolve``.
    """

    def __init__(self, *, slots: int, output_check: Check, resolve: Callable[[str], str]) -> None:
        self._slots = slots
        self._checked = output_check == "on"
        self._resolve = resolve
        self._waiting: deque[Ticket] = deque()
        self._waiting_batch: deque[Ticket] = deque()
        self._running: dict[tuple[str, int], Ticket] = {}
        self._seen: Recent[tuple[str, int]] = Recent(REMEMBERED)
        self._cancelled: Recent[tuple[str, int | None]] = Recent(REMEMBERED)

    @property
    def running(self) -> int:
        """Executions now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Accepted requests that wait."""
        return len(self._waiting) + len(self._waiting_batch)

    @property
    def idle(self) -> bool:
        """Whether batch work may begin: no interactive request waits, and the next one would find a slot free."""
        return not self._waiting and len(self._running) < max(1, self._slots - 1)

    def accept(self, ticket: Ticket, now_us: int) -> Refusal | Literal["waits", "known"]:
        """Takes a request up. ``known`` is a repetition: retries have another attempt number, so nothing is done."""
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

    def pick(self, now_us: int) -> tuple[Ticket, Refusal | None] | None:
        """The next request to start, or one that waited too long and is refused; None when nothing can start."""
        if len(self._running) >= self._slots:
            return None
        if self._waiting:
            ticket = self._waiting.popleft()
        elif self._waiting_batch and self.idle:
            ticket = self._waiting_batch.popleft()
        else:
            return None
        if now_us >= ticket.expires_us:
            total_ms = ticket.request.deadlines.total_ms
            return ticket, Refusal("timeout", f"its {total_ms} ms had passed before it could start", retryable=False)
        self._running[ticket.request.request_id, ticket.request.attempt] = ticket
        return ticket, None

    def ended(self, ticket: Ticket) -> None:
        """An execution is over; its slot is free."""
        del self._running[ticket.request.request_id, ticket.request.attempt]

    def cancel(self, event: Cancel, now_us: int) -> tuple[list[Ticket], list[Ticket]]:
        """Remembers a cancel, for its request may come later.

        Returns:
            The requests that waited and are dropped, and the executions to stop; each knows why.
        """
        self._cancelled.add((event.request_id, event.attempt), now_us)
        refusal = _cancelled(event.reason)

        def meant(ticket: Ticket) -> bool:
            return ticket.request.request_id == event.request_id and event.attempt in {None, ticket.request.attempt}

        dropped = [each for each in (*self._waiting, *self._waiting_batch) if meant(each)]
        stopped = [each for each in self._running.values() if meant(each) and each.stoppable]
        for ticket in dropped:
            (self._waiting_batch if ticket.batch else self._waiting).remove(ticket)
        for ticket in (*dropped, *stopped):
            ticket.stopped = refusal
        return dropped, stopped

    def clear(self, refusal: Refusal) -> tuple[list[Ticket], list[Ticket]]:
        """The end of the process: all that waited, and the executions to stop; each knows why."""
        dropped = [*self._waiting, *self._waiting_batch]
        self._waiting.clear()
        self._waiting_batch.clear()
        stopped = [each for each in self._running.values() if each.stoppable]
        for ticket in (*dropped, *stopped):
            ticket.stopped = refusal
        return dropped, stopped

    def _refusal(self, request: Request, now_us: int) -> Refusal | None:
        for key in ((request.request_id, request.attempt), (request.request_id, None)):
            at_us = self._cancelled.at(key)
            if at_us is not None and now_us - at_us < CANCEL_MEMORY_US:
                return _cancelled("before it was read")
        mode = request.delivery.mode
        if mode != "optimistic" and not self._checked:
            return Refusal(
                "bad_request",
                f"delivery {mode!r} shows only what a safety service has cleared, and none checks here"
                " (RAILBUS_OUTPUT_CHECK=off)",
                retryable=False,
            )
        try:
            self._resolve(request.model)
        except EngineError as error:
            return Refusal.of(error)
        return None


def _cancelled(why: str) -> Refusal:
    return Refusal("cancelled", f"cancelled: {why}", retryable=False)
