"""The core of safety, without I/O. It takes events of the stream log and returns events to write and checks to run.

Time and ids are arguments. The written events do not depend on time, on how events are batched, or on when checks
answer. ``decide/run.py`` gives the reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from schemas.registry import reads
from schemas.requests import LONGEST_TOTAL_MS
from schemas.stream import Chunk, Cleared, StreamEvent
from schemas.topics import STREAMS
from services.bus import Received, UnreadableRecord
from services.policy import Policy
from services.processor import Core, Effect, Write
from services.processor.fair_queue import FairQueue
from services.safety.decide.check_types import CheckOutcome, CheckRequest, RunOutput
from services.safety.decide.recalls import CheckContext
from services.safety.decide.request import RequestCheck
from services.safety.partition import SafetyPartition

STEP_CHARS: Final = 2_048
"""Approximate work of one ``step``, in characters read. After each step, other tasks of the event loop can run."""

_READ: Final = reads("safety")[STREAMS.name]

TURN_EVENTS: Final = 16
"""Maximum number of events of one tenant that are processed before those of another tenant."""

_TURN_COST: Final = 256
"""Fixed cost of a change to another tenant, in characters. It is added to the number of characters that are read."""


@final
@dataclass(frozen=True, slots=True)
class _UnreadText:
    """A request with text that is not read yet, because it is longer than one slice."""

    request: RequestCheck


_Queued = tuple[SafetyPartition, StreamEvent | _UnreadText, str | None]
"""A queue item: the partition; the event, or the unread text of a request; and the record's traceparent."""


class SafetyCore(Core):
    """All partitions of one safety process. ``read`` queues events, and ``step`` processes them, tenant by tenant.

    Args:
        policy: The first policy.
        source: The ``source`` of the events that it writes.
        total_max_ms: Longest total deadline that the router grants an interactive request.

    Attributes:
        policy: The policy for requests that start from now on.
        expired: Number of requests that were forgotten because they were never closed.
    """

    def __init__(self, policy: Policy, source: str, total_max_ms: int = LONGEST_TOTAL_MS) -> None:
        self._total_max_us = total_max_ms * 1_000
        self.policy = policy
        self._context = CheckContext(source)
        self._partitions: dict[int, SafetyPartition] = {}
        self._queue: FairQueue[_Queued] = FairQueue()  # bounded by the processor's limit
        # By number of a check, its partition, request and attempt. Bounded by open requests and their windows.
        self._pending: dict[int, tuple[SafetyPartition, RequestCheck, int]] = {}
        self._awaited: set[int] = set()  # partitions that were read to their end but still have queued events
        self._backlog = 0
        self.expired = 0

    @property
    def backlog(self) -> int:
        return self._backlog

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def open(self) -> int:
        """Return how many requests are being checked."""
        return sum(len(partition.requests) for partition in self._partitions.values())

    def take_dropped(self) -> int:
        """Return how many requests were dropped since the last call, because too many were open."""
        dropped = sum(partition.dropped for partition in self._partitions.values())
        for partition in self._partitions.values():
            partition.dropped = 0
        return dropped

    @property
    def pending_checks(self) -> int:
        """Return how many checks have no outcome yet."""
        return len(self._pending)

    def waits_for(self, check: CheckRequest) -> bool:
        """Return whether the outcome of a check is still needed."""
        return check.number in self._pending

    def gained(self, number: int) -> None:
        """Start to check a partition that was assigned to this process."""
        self._partitions[number] = SafetyPartition(self._total_max_us, catching_up=True)

    def lost(self, number: int) -> None:
        """Forget a partition. Its queued events will be skipped."""
        partition = self._partitions.pop(number)
        partition.lost = True
        self._awaited.discard(number)
        self._pending = {check: whose for check, whose in self._pending.items() if whose[0] is not partition}

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Queue an event of the stream log."""
        if type(record) is UnreadableRecord:
            return ()
        event = record.event
        if type(event) in _READ and isinstance(event, StreamEvent):
            partition = self._partitions[record.partition]
            partition.queued += 1
            partition.read_us = at_us
            self._backlog += 1
            self._queue.put(event.tenant, (partition, event, record.traceparent))
        return ()

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:  # noqa: ARG002
        """Return the effects that were held back while the partition caught up, if they are still due.

        As long as events of the partition are queued, return none of them; a later ``step`` then returns them.
        """
        partition = self._partitions[number]
        if partition.queued:
            self._awaited.add(number)
            return []
        self._awaited.discard(number)
        self._context.now_us = now_us
        effects: list[Effect] = []
        for request, attempt, output in partition.caught_up():
            self._perform(partition, request, attempt, output, effects)
        return effects

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """Return when the oldest request expires, in microseconds since the epoch; None without requests."""
        return self._partitions[number].expires_us

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Forget requests that have expired because they were never closed."""
        self.expired += self._partitions[number].expire(known_us)
        return ()

    def step(self, now_us: int) -> list[Effect]:
        """Take events from the queue until ``STEP_CHARS`` is reached. Return the resulting effects."""
        context = self._context
        context.now_us, context.work = now_us, 0
        effects: list[Effect] = []
        cost = 0
        while cost + context.work < STEP_CHARS and (turn := self._queue.turn(TURN_EVENTS)) is not None:
            tenant, items = turn
            for index, item in enumerate(items):
                partition, event, traceparent = item
                request: RequestCheck | None = None
                if partition.lost:
                    pass
                elif type(event) is Chunk:
                    request = partition.requests.get(event.request_id)
                    cost += len(event.text)
                    if request is not None and (outputs := request.add(event)):
                        self._admit(partition, request, event.attempt, outputs, effects)
                else:
                    request = self._take(partition, event, traceparent, effects)
                    cost += STEP_CHARS if type(event) is _UnreadText else 0
                if request is not None and request.unread:
                    self._queue.put_back(tenant, [(partition, _UnreadText(request), None), *items[index + 1 :]])
                    break
                partition.queued -= 1
                self._backlog -= 1
                if cost + context.work >= STEP_CHARS:  # enough for one step
                    self._queue.put_back(tenant, items[index + 1 :])
                    break
            cost += _TURN_COST
        for number in sorted(self._awaited):
            effects.extend(self.caught_up(number, now_us, now_us))
        return effects

    def take_outcome(self, check: CheckRequest, outcome: CheckOutcome, now_us: int) -> list[Effect]:
        """Take the outcome of a check. If it is no longer needed, ignore it."""
        whose = self._pending.pop(check.number, None)
        if whose is None:
            return []
        partition, request, attempt = whose
        self._context.now_us = now_us
        effects: list[Effect] = []
        self._admit(partition, request, attempt, request.take_outcome(attempt, check, outcome), effects)
        if request.over:
            partition.forget_if_over(request)
        return effects

    def _take(
        self,
        partition: SafetyPartition,
        event: StreamEvent | _UnreadText,
        traceparent: str | None,
        effects: list[Effect],
    ) -> RequestCheck | None:
        """Take an event other than a chunk, or read the next slice of a text."""
        if type(event) is _UnreadText:
            request = event.request
            outputs_by_attempt = request.read()
        else:
            known = partition.check_of(event, self.policy, self._context)
            if known is None:
                return None
            request = known
            request.traceparent = traceparent or request.traceparent
            outputs_by_attempt = request.take(event)
            if partition.catching_up and isinstance(event, Cleared) and event.final:
                partition.drop_settled(request)
        for attempt, outputs in outputs_by_attempt:
            self._admit(partition, request, attempt, outputs, effects)
        partition.forget_if_over(request)
        return request

    def _admit(
        self,
        partition: SafetyPartition,
        request: RequestCheck,
        attempt: int,
        outputs: list[RunOutput],
        effects: list[Effect],
    ) -> None:
        """Add to ``effects`` the checks to run, and the events that are not on the log yet.

        While the partition catches up, hold all outputs back instead.
        """
        if partition.catching_up:
            partition.hold(request, attempt, outputs)
            return
        for output in outputs:
            if type(output) is CheckRequest or request.new(output):
                self._perform(partition, request, attempt, output, effects)

    def _perform(
        self, partition: SafetyPartition, request: RequestCheck, attempt: int, output: RunOutput, effects: list[Effect]
    ) -> None:
        if type(output) is CheckRequest:
            self._pending[output.number] = (partition, request, attempt)
            effects.append(output)
        else:
            effects.append(Write(STREAMS, output, request.traceparent))
