"""The decisions of the safety service, without I/O.

``SafetyCore`` takes events of the stream log, and returns checks to run and events to write. The events to write are
recalls (which take text back) and clearances (which say that text passed the checks).

The decisions do not depend on time, on how events are batched, or on when checks answer. There are two exceptions:
checks that fail or answer too late, and requests that expire or are dropped.
"""

from collections.abc import Sequence
from typing import Final

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


_Queued = tuple[SafetyPartition, StreamEvent | RequestCheck, str | None]
"""A queue item: the partition; the event, or a request with ``unread`` text; and the record's traceparent."""


class SafetyCore(Core):
    """Makes the decisions for all partitions of one safety process.

    ``read`` puts events into a queue. ``step`` processes them, tenant by tenant.

    Args:
        total_max_ms: Longest total deadline that the router grants an interactive request.

    Attributes:
        policy: The policy for new requests. Open requests keep the policy that they began with.
        expired: Number of requests that were forgotten because they were never closed.
    """

    def __init__(self, policy: Policy, source: str, total_max_ms: int = LONGEST_TOTAL_MS) -> None:
        self._total_max_us = total_max_ms * 1_000
        self.policy = policy
        self._context = CheckContext(source)
        self._partitions: dict[int, SafetyPartition] = {}
        self._queue: FairQueue[_Queued] = FairQueue()  # bounded by the processor's limit
        # By number of a check, its partition and request. Bounded by open requests and their windows.
        self._pending: dict[int, tuple[SafetyPartition, RequestCheck]] = {}
        self._awaited: set[int] = set()  # partitions that were read to their end but still have queued events
        self.expired = 0

    @property
    def backlog(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def open(self) -> int:
        return sum(len(partition.requests) for partition in self._partitions.values())

    def take_dropped(self) -> int:
        """Return how many requests were dropped since the last call. A request is dropped if too many are open."""
        dropped = sum(partition.dropped for partition in self._partitions.values())
        for partition in self._partitions.values():
            partition.dropped = 0
        return dropped

    @property
    def pending_checks(self) -> int:
        return len(self._pending)

    def waits_for(self, check: CheckRequest) -> bool:
        return check.number in self._pending

    def gained(self, number: int) -> None:
        self._partitions[number] = SafetyPartition(self._total_max_us, catching_up=True)

    def lost(self, number: int) -> None:
        partition = self._partitions.pop(number)
        partition.lost = True  # `step` skips its queued events
        self._awaited.discard(number)
        self._pending = {check: whose for check, whose in self._pending.items() if whose[0] is not partition}

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        if type(record) is UnreadableRecord:
            return ()
        event = record.event
        if type(event) in _READ and isinstance(event, StreamEvent):
            partition = self._partitions[record.partition]
            partition.queued += 1
            partition.read_us = at_us
            self._queue.put(event.tenant, (partition, event, record.traceparent))
        return ()

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:  # noqa: ARG002
        """Record that partition ``number`` has been read to its end. Return the effects that were held back until now.

        Effects that are no longer needed are left out. If events of the partition are still queued, return an empty
        list; ``step`` returns the effects when it has processed these events.
        """
        partition = self._partitions[number]
        if partition.queued:
            self._awaited.add(number)
            return []
        self._awaited.discard(number)
        self._context.now_us = now_us
        effects: list[Effect] = []
        for request, output in partition.caught_up():
            self._perform(partition, request, output, effects)
        return effects

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        return self._partitions[number].expires_us

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        self.expired += self._partitions[number].expire(known_us)
        return ()

    def step(self, now_us: int) -> list[Effect]:
        """Process queued events with up to about ``STEP_CHARS`` characters of text in total. Return the effects."""
        context = self._context
        context.now_us, context.work = now_us, 0
        effects: list[Effect] = []
        cost = 0
        while cost + context.work < STEP_CHARS and (turn := self._queue.turn(TURN_EVENTS)) is not None:
            tenant, items = turn
            for index, item in enumerate(items):
                partition, event, traceparent = item
                request: RequestCheck | None = None
                context.holding = partition.catching_up
                if partition.lost:
                    pass
                elif type(event) is Chunk:
                    request = partition.requests.get(event.request_id)
                    cost += len(event.text)
                    if request is not None and (outputs := request.add(event)):
                        self._admit(partition, request, outputs, effects)
                else:
                    request = self._take(partition, event, traceparent, effects)
                    cost += STEP_CHARS if type(event) is RequestCheck else 0
                if request is not None and request.unread:
                    self._queue.put_back(tenant, [(partition, request, None), *items[index + 1 :]])
                    break
                partition.queued -= 1
                if cost + context.work >= STEP_CHARS:  # enough for one step
                    self._queue.put_back(tenant, items[index + 1 :])
                    break
            cost += _TURN_COST
        for number in sorted(self._awaited):
            effects.extend(self.caught_up(number, now_us, now_us))
        return effects

    def take_outcome(self, check: CheckRequest, outcome: CheckOutcome, now_us: int) -> list[Effect]:
        """Return the effects of a check's outcome; none if the outcome is no longer needed."""
        whose = self._pending.pop(check.number, None)
        if whose is None:
            return []
        partition, request = whose
        self._context.now_us = now_us
        effects: list[Effect] = []
        self._admit(partition, request, request.take_outcome(check, outcome), effects)
        partition.forget_if_over(request)
        return effects

    def _take(
        self,
        partition: SafetyPartition,
        event: StreamEvent | RequestCheck,
        traceparent: str | None,
        effects: list[Effect],
    ) -> RequestCheck | None:
        if type(event) is RequestCheck:
            request = event
            outputs = request.read()
        else:
            known = partition.check_of(event, self.policy, self._context)
            if known is None:
                return None
            request = known
            request.traceparent = traceparent or request.traceparent
            outputs = request.take(event)
            if partition.catching_up and isinstance(event, Cleared) and event.final:
                partition.drop_settled(request)
        self._admit(partition, request, outputs, effects)
        partition.forget_if_over(request)
        return request

    def _admit(
        self,
        partition: SafetyPartition,
        request: RequestCheck,
        outputs: list[RunOutput],
        effects: list[Effect],
    ) -> None:
        if partition.catching_up:
            partition.hold(request, outputs)
            return
        for output in outputs:
            if type(output) is CheckRequest or request.new(output):  # an event that is on the log is not written again
                self._perform(partition, request, output, effects)

    def _perform(
        self, partition: SafetyPartition, request: RequestCheck, output: RunOutput, effects: list[Effect]
    ) -> None:
        if type(output) is CheckRequest:
            self._pending[output.number] = (partition, request)
            effects.append(output)
        else:
            effects.append(Write(STREAMS, output, request.traceparent))
