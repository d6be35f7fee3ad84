"""Decide which requests the rails evaluate, and when. No I/O."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.requests import Request, received_us
from schemas.stream import Verdict
from schemas.topics import STREAMS
from services.bus import Received, UnreadableRecord
from services.processor import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.fair_queue import FairQueue
from services.runtime.classes.service_classes import ServiceClasses

MAX_EVALUATED: Final = 5_000
"""Maximum number of request ids that are remembered per partition, so that a request gets one verdict."""


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """Tells the service to evaluate a request.

    Attributes:
        crowded: Whether too many requests of the same tenant wait already. If true, the request is denied, and no rail
            runs.
    """

    place: RecordPosition
    request: Request
    traceparent: str | None
    crowded: bool = False


class RailsCore(Core):
    """Decides when each request of one lane (interactive or batch) is evaluated. Tenants take turns.

    Args:
        room: Maximum number of requests that are evaluated at the same time.
        most_waiting: Maximum number of waiting requests of one tenant; None for no maximum. While a tenant has this
            many, its new requests are denied.
        classes: Returns the policy's classes of requests.
    """

    # After a crash or a rebalance, a request may be evaluated twice.

    def __init__(
        self, room: int, most_waiting: int | None = None, classes: Callable[[], ServiceClasses] = ServiceClasses
    ) -> None:
        self._classes = classes
        self._room = room
        self._share = room - room // 4
        self._most_waiting = most_waiting
        self._waiting: FairQueue[EvaluateRequest] = FairQueue()  # bounded by the processor's limit
        self._running: Counter[str] = Counter()  # by tenant, without zeros
        self._evaluated: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)  # by partition number
        # By request id, the place of its record. Bounded by the processor's limit.
        self._pending: dict[str, RecordPosition] = {}

    @property
    def backlog(self) -> int:
        return len(self._pending)

    def lost(self, number: int) -> None:
        """Forget the requests of a lost partition.

        Waiting requests are not evaluated. For requests that are being evaluated, no verdict is written.
        """
        # The new owner evaluates these requests. If it is this process, it must not skip a request whose verdict is
        # sent but not acknowledged, because the verdict perhaps never reaches the log.
        self._evaluated.pop(number, None)
        for request_id in [each for each, place in self._pending.items() if place.partition == number]:
            del self._pending[request_id]
        self._waiting.retain(lambda effect: effect.place.partition != number)

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:
        """Queue a new request for evaluation. Skip attempts 2 and later, and requests past their total deadline."""
        place = RecordPosition.of(record)
        request = record.event if isinstance(record, Received) else None
        if not isinstance(record, Received) or not isinstance(request, Request):
            return (RecordDone(place),)
        total_us = self._classes().deadlines_of(request).total_ms * 1_000
        over = now_us > received_us(request, at_us) + total_us
        evaluated = self._evaluated[place.partition]
        if request.attempt > 1 or over or request.request_id in evaluated:
            return (RecordDone(place),)
        evaluated[request.request_id] = None
        if len(evaluated) > MAX_EVALUATED:
            evaluated.popitem(last=False)
        self._pending[request.request_id] = place
        tenant = request.tenant
        if self._most_waiting is not None and self._waiting.waiting(tenant) >= self._most_waiting:
            return (EvaluateRequest(place, request, record.traceparent, crowded=True),)
        self._waiting.put(tenant, EvaluateRequest(place, request, record.traceparent))
        return self._begin()

    def evaluated(self, effect: EvaluateRequest, verdict: Verdict | None) -> Sequence[Effect]:
        """End an evaluation. If it failed, ``verdict`` is None, and no text is shown for the request."""
        if not effect.crowded:
            self._leave(effect.request.tenant)
        begun = self._begin()
        place = self._pending.pop(effect.request.request_id, None)
        if place is None:
            return begun
        # If the log lost its end, the place may now be that of another request, whose record is not done.
        done = None if place in self._pending.values() else place
        if verdict is not None:
            return (Write(STREAMS, verdict, effect.traceparent, done), *begun)
        return begun if done is None else (RecordDone(done), *begun)

    def unwritten(self, place: RecordPosition, request_id: str) -> None:
        """Forget a request whose verdict was not written, so that it is evaluated when its record is read again."""
        self._evaluated[place.partition].pop(request_id, None)

    def _leave(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def _begin(self) -> list[EvaluateRequest]:
        begun: list[EvaluateRequest] = []
        full = {tenant for tenant, count in self._running.items() if count >= self._share}
        while self._running.total() < self._room and (turn := self._waiting.get(full)) is not None:
            tenant, effect = turn
            self._running[tenant] += 1
            if self._running[tenant] >= self._share:
                full.add(tenant)
            begun.append(effect)
        return begun
