"""Decide when each request's trace is exported. No I/O, no clock.

A request's trace is exported when two events were read: its ``Account``, and a ``Detached`` that says that the client
was sent the whole answer. If no ``Detached`` says so, the trace is exported ``LINGER_US`` after the ``Account``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.side_events import Account, Detached
from services.bus import Received, UnreadableRecord
from services.processor import Core, Effect
from services.tracer.spans import Trace, is_sampled, trace_of

LINGER_US: Final = 5_000_000
"""Maximum time for which a trace waits for the receipt of a client's connection. It begins at the append time of the
request's account."""

OVERLAP_US: Final = 60_000_000
"""When a partition is gained, the traces of requests that were closed less than this time ago are exported again."""

MEMORY_US: Final = 120_000_000
"""Time, from the first record about a request, for which the request is remembered. Its receipt waits for its account
for at most this time. Once its trace was exported, further records about it are ignored until this time is over."""

MAX_REQUESTS: Final = 100_000
"""Maximum number of requests that are remembered, about 100 MB. If there are more, the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class ExportTrace:
    trace: Trace


@dataclass(slots=True)
class _Request:
    # Append time of the first record about the request.
    first_us: int
    account: Account | None = None
    account_us: int = 0
    traceparent: str | None = None
    receipt: Detached | None = None
    # When the whole answer was first sent to a client, by the edge's clock.
    sent_at: int | None = None
    # Whether the trace was exported or dropped. Later records about the request are then ignored.
    over: bool = False


class _Partition:
    def __init__(self) -> None:
        # Both are in order of arrival, oldest first.
        self.requests: dict[str, _Request] = {}
        self.waiting: dict[str, _Request] = {}
        self.catching_up = True


class TracerCore(Core):
    """Returns the traces to export, and counts the requests without a trace.

    A trace is made from a request's ``Account``, the event that summarises the closed request.

    Attributes:
        unsampled: Requests whose ``traceparent`` is not sampled.
        unclosed: Requests whose ``Account`` did not come within ``MEMORY_US``.
        crowded: Requests that were forgotten because of ``MAX_REQUESTS``.
        incomplete: Requests whose ``Account`` lacks details.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self.unsampled = 0
        self.unclosed = 0
        self.crowded = 0
        self.incomplete = 0

    @property
    def open(self) -> int:
        return sum(not each.over for part in self._partitions.values() for each in part.requests.values())

    @property
    def remembered(self) -> int:
        return sum(len(part.requests) for part in self._partitions.values())

    def gained(self, number: int) -> None:
        self._partitions[number] = _Partition()

    def lost(self, number: int) -> None:
        del self._partitions[number]

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        event = record.event if isinstance(record, Received) else None
        if not isinstance(record, Received) or not isinstance(event, Account | Detached):
            return ()
        partition = self._partitions[record.partition]
        request = partition.requests.get(event.request_id)
        if request is None:
            request = partition.requests[event.request_id] = _Request(at_us)
            self._make_room(partition)
        if request.over:
            return ()
        if isinstance(event, Detached):
            request.receipt = event
            if event.reason == "complete":  # a later connection may read the answer again
                request.sent_at = event.at if request.sent_at is None else min(request.sent_at, event.at)
        elif request.account is None:
            request.account, request.account_us, request.traceparent = event, at_us, record.traceparent
            partition.waiting[event.request_id] = request
        if partition.catching_up or request.account is None or request.sent_at is None:
            return ()
        return self._export(partition, event.request_id)

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Begin to export the traces of a partition, its newest first, after its existing records were read."""
        partition = self._partitions[number]
        partition.catching_up = False
        effects: list[Effect] = []
        # The last owner of the partition has exported older traces. It may have been killed before it exported the
        # newer ones, so they are exported again, with the same ids. If there is no room for all of them, the newest are
        # the ones that may be missing.
        for request_id, request in reversed(tuple(partition.waiting.items())):
            if request.account_us < known_us - OVERLAP_US:
                _finish(partition, request_id)
            elif request.sent_at is not None:
                effects += self._export(partition, request_id)
        return effects

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        partition = self._partitions[number]
        due: list[int] = []
        if (waiting := next(iter(partition.waiting.values()), None)) is not None:
            due.append(waiting.account_us + LINGER_US)
        oldest_id, oldest = next(iter(partition.requests.items()), ("", None))
        if oldest is not None and oldest_id not in partition.waiting:  # else it is forgotten after its export
            due.append(oldest.first_us + MEMORY_US)
        return min(due, default=None)

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Export the traces whose ``Account`` is at least ``LINGER_US`` old, and forget old requests."""
        partition = self._partitions[number]
        effects: list[Effect] = []
        while partition.waiting:
            request_id, request = next(iter(partition.waiting.items()))
            if request.account_us + LINGER_US > known_us:
                break
            effects += self._export(partition, request_id)
        while partition.requests:
            request_id, request = next(iter(partition.requests.items()))
            if request.first_us + MEMORY_US > known_us or request_id in partition.waiting:
                break
            self.unclosed += not request.over
            del partition.requests[request_id]
        return effects

    def _export(self, partition: _Partition, request_id: str) -> list[Effect]:
        request = partition.requests[request_id]
        account, sent_at, receipt, traceparent = request.account, request.sent_at, request.receipt, request.traceparent
        _finish(partition, request_id)
        if account is None:
            return []
        if not is_sampled(traceparent):
            self.unsampled += 1
            return []
        trace = trace_of(account, sent_at, receipt, traceparent)
        if trace is None:
            self.incomplete += 1
            return []
        return [ExportTrace(trace)]

    def _make_room(self, partition: _Partition) -> None:
        if len(partition.requests) * len(self._partitions) <= MAX_REQUESTS:
            return
        request_id, request = next(iter(partition.requests.items()))
        self.crowded += not request.over
        partition.waiting.pop(request_id, None)
        del partition.requests[request_id]


def _finish(partition: _Partition, request_id: str) -> None:
    partition.waiting.pop(request_id, None)
    request = partition.requests[request_id]
    request.over, request.account, request.receipt, request.traceparent = True, None, None, None
