"""When a request's trace is complete. Pure: events in, ``ExportTrace`` out.

A trace is complete when the request is closed and a client had all of the answer, or ``LINGER_US`` after it was closed.
What a partition had before it was gained was exported by the member that held it, but for the newest ``OVERLAP_US``:
these are exported again, with the same ids, because that member may have been killed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.requests import LONGEST_TOTAL_MS, Request
from schemas.side_events import Detached
from schemas.stream import Closed, StreamEvent
from services.bus import Received, UnreadableRecord
from services.processor import Core, Effect
from services.stream.latency import LogEvent
from services.tracer.spans import Trace, is_sampled, trace_of

LINGER_US: Final = 5_000_000
"""How long after its end a trace waits for the receipt of the client's connection."""

OVERLAP_US: Final = 30_000_000
"""How much of what was closed before a partition was gained is exported again."""

MEMORY_MS: Final = 60_000
"""A request is remembered for this much longer than it may be open."""

MAX_EVENTS: Final = 200_000
"""Most events that are kept for open requests, about 100 MB; beyond, the oldest request is not traced."""


@dataclass(frozen=True, slots=True)
class ExportTrace:
    """An effect: send this trace to the collector."""

    trace: Trace


@dataclass(slots=True)
class _OpenRequest:
    """A request that is being read; without events once its trace was exported or given up.

    Attributes:
        first_us: Its first event, or when it was last found to be open for longer than interactive requests are.
        open_until_us: When it must be closed, if it is of the batch lane.
    """

    first_us: int
    open_until_us: int = 0
    events: list[LogEvent] = field(default_factory=list)
    traceparent: str | None = None
    known: bool = False
    closed: bool = False
    received: bool = False
    over: bool = False


class _Partition:
    """The requests of one partition, and which of them are due next. Both dictionaries are in the order of time."""

    def __init__(self) -> None:
        self.requests: dict[str, _OpenRequest] = {}
        self.closing: dict[str, int] = {}
        self.catching_up = True


class TracerCore(Core):
    """All partitions of one tracer.

    Args:
        total_max_ms: Longest total deadline that the router grants an interactive request.

    Attributes:
        unsampled: Requests whose clients did not want a trace.
        unclosed: Requests that were forgotten because they were never closed.
        crowded: Requests that were given up because too many events were kept.
    """

    def __init__(self, total_max_ms: int = LONGEST_TOTAL_MS) -> None:
        self._memory_us = (total_max_ms + MEMORY_MS) * 1_000
        self._partitions: dict[int, _Partition] = {}
        self._kept = 0
        self.unsampled = 0
        self.unclosed = 0
        self.crowded = 0

    @property
    def open(self) -> int:
        """Return how many requests have no trace yet."""
        return sum(not each.over for part in self._partitions.values() for each in part.requests.values())

    @property
    def kept_events(self) -> int:
        """Return how many events are in memory."""
        return self._kept

    def gained(self, number: int) -> None:
        """Begin to read a partition."""
        self._partitions[number] = _Partition()

    def lost(self, number: int) -> None:
        """Forget a partition."""
        for request in self._partitions.pop(number).requests.values():
            self._kept -= len(request.events)

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Keep an event; export its request's trace if this completes it."""
        event = record.event if isinstance(record, Received) else None
        if not isinstance(record, Received) or not isinstance(event, Request | StreamEvent | Detached):
            return ()
        partition = self._partitions[record.partition]
        request = partition.requests.get(event.request_id)
        if request is None:
            request = partition.requests[event.request_id] = _OpenRequest(at_us)
        if request.over:
            return ()
        request.events.append(LogEvent(record.timestamp_ms, event))
        self._kept += 1
        if self._kept > MAX_EVENTS:
            self._give_up_oldest()
        match event:
            case Request() if event.attempt == 1 and not request.known:
                request.known, request.traceparent = True, record.traceparent
                if event.lane == "batch":
                    request.open_until_us = at_us + event.deadlines.total_ms * 1_000 + MEMORY_MS * 1_000
            case Closed():
                request.closed = True
                partition.closing[event.request_id] = at_us + LINGER_US
            case Detached() if event.reason == "complete":
                request.received = True
            case _:
                return ()
        if partition.catching_up or not (request.closed and request.received and request.known):
            return ()
        return self._export(partition, event.request_id)

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Export what was closed shortly before; what was closed earlier has been exported."""
        partition = self._partitions[number]
        partition.catching_up = False
        effects: list[Effect] = []
        for request_id, due_us in tuple(partition.closing.items()):
            request = partition.requests[request_id]
            if due_us - LINGER_US < known_us - OVERLAP_US:
                self._forget(partition, request_id)
            elif request.received and request.known:
                effects += self._export(partition, request_id)
        return effects

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return when the next closed request has waited long enough, or the oldest is forgotten."""
        partition = self._partitions[number]
        due = [due_us for due_us in (next(iter(partition.closing.values()), None),) if due_us is not None]
        if (oldest := next(iter(partition.requests.values()), None)) is not None:
            due.append(oldest.first_us + self._memory_us)
        return min(due, default=None)

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Export what has waited long enough; forget what is too old."""
        partition = self._partitions[number]
        effects: list[Effect] = []
        while partition.closing:
            request_id, due_us = next(iter(partition.closing.items()))
            if due_us > known_us:
                break
            effects += self._export(partition, request_id)
        while partition.requests:
            request_id, request = next(iter(partition.requests.items()))
            if request.first_us + self._memory_us > known_us:
                break
            if not request.over and request.open_until_us > known_us:  # of the batch lane: look again later
                del partition.requests[request_id]
                request.first_us = known_us
                partition.requests[request_id] = request
                continue
            self.unclosed += not request.over
            self._forget(partition, request_id)
            del partition.requests[request_id]
        return effects

    def _export(self, partition: _Partition, request_id: str) -> list[Effect]:
        request = partition.requests[request_id]
        partition.closing.pop(request_id, None)
        trace = None
        if is_sampled(request.traceparent):
            trace = trace_of(request_id, request.events, request.traceparent)
            if trace is None and request.known:
                request.closed = False  # the cause of its ``Closed`` did not hold: another one follows
                return []
        else:
            self.unsampled += 1
        self._forget(partition, request_id)
        return [] if trace is None else [ExportTrace(trace)]

    def _forget(self, partition: _Partition, request_id: str) -> None:
        """Drop a request's events; its later ones are ignored."""
        request = partition.requests[request_id]
        partition.closing.pop(request_id, None)
        self._kept -= len(request.events)
        request.over, request.events = True, []

    def _give_up_oldest(self) -> None:
        open_requests = (
            (request.first_us, request_id, partition)
            for partition in self._partitions.values()
            for request_id, request in partition.requests.items()
            if request.events
        )
        _, request_id, partition = min(open_requests, key=lambda each: each[0])
        self.crowded += 1
        self._forget(partition, request_id)
