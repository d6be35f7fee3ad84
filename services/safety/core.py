"""The safety service, no I/O: events of the stream log in, events for it and questions to the checks out.

Time and ids come in as arguments. What is said does not depend on time, on how events are batched, or on when checks
answer; see ``run.py`` for why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.registry import reads
from schemas.stream import Chunk, StreamEvent
from schemas.topics import STREAMS
from services.bus import Received, Unread
from services.policy import Policy
from services.processor import Core, Effect, Write
from services.safety.case import Case
from services.safety.fair import FairQueue
from services.safety.looks import Answer, Look, Out
from services.safety.shard import Shard
from services.safety.verdicts import Stamp

STEP_CHARS: Final = 2_048
"""About as much is read in one ``step``, or as much work done; then the event loop may do something else."""

_READ: Final = reads("safety")[STREAMS.name]

TURN_EVENTS: Final = 16
"""Most events of one tenant before it is another's turn."""

_TURN_COST: Final = 256
"""What a turn costs beside its chunks' characters, in characters."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """A case with more to read than one slice."""

    case: Case


_Item = tuple[Shard, StreamEvent | _Rest, str | None]
"""An event or the rest of one, whose partition, and its traceparent."""


class Safety(Core):
    """All partitions that this process holds.

    Reading puts an event in a queue; ``step`` deals with the queue, tenant by tenant.

    Args:
        policy: For requests that begin from now on; assign to ``policy`` to change it.
        source: Who writes the events.
    """

    def __init__(self, policy: Policy, source: str) -> None:
        self.policy = policy
        self._stamp = Stamp(source)
        self._shards: dict[int, Shard] = {}
        self._queue: FairQueue[_Item] = FairQueue()  # bounded by the shell's room
        self._asked: dict[int, tuple[Shard, Case, int]] = {}  # look -> whose; bounded by open requests and windows
        self._awaited: set[int] = set()  # partitions read to their end, but with events still queued
        self._backlog = 0
        self.expired = 0
        """Requests that were forgotten because they were never closed."""

    @property
    def backlog(self) -> int:
        """Events that were read and not dealt with."""
        return self._backlog

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._queue)

    @property
    def open(self) -> int:
        """Requests being checked."""
        return sum(len(shard.cases) for shard in self._shards.values())

    @property
    def looking(self) -> int:
        """Looks that are not answered."""
        return len(self._asked)

    def waits_for(self, look: Look) -> bool:
        """Whether the answer to a question still matters."""
        return look.number in self._asked

    def gained(self, number: int) -> None:
        """Listen, from the beginning of the partition's open requests."""
        self._shards[number] = Shard(listening=True)

    def lost(self, number: int) -> None:
        """Forget the partition; what is queued of it is passed over."""
        shard = self._shards.pop(number)
        shard.lost = True
        self._awaited.discard(number)
        self._asked = {look: asked for look, asked in self._asked.items() if asked[0] is not shard}

    def read(self, record: Received | Unread, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Queue an event of the log."""
        event = record.event if isinstance(record, Received) else None
        if isinstance(record, Received) and isinstance(event, StreamEvent) and type(event) in _READ:
            shard = self._shards[record.partition]
            shard.queued += 1
            shard.read_us = at_us
            self._backlog += 1
            self._queue.put(event.tenant, (shard, event, record.traceparent))
        return ()

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:  # noqa: ARG002
        """Say what is unsaid, once everything that is queued was dealt with."""
        shard = self._shards[number]
        if shard.queued:
            self._awaited.add(number)
            return []
        self._awaited.discard(number)
        self._stamp.now_us = now_us
        effects: list[Effect] = []
        for case, attempt, out in shard.caught_up():
            self._perform(shard, case, attempt, out, effects)
        return effects

    def alarm_us(self, number: int, now_us: int) -> int | None:  # noqa: ARG002
        """When the oldest request must have ended."""
        return self._shards[number].expires_us

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002
        """Forget requests that were never closed."""
        self.expired += self._shards[number].expire(known_us)
        return ()

    def step(self, now_us: int) -> list[Effect]:
        """Deal with some of the queue."""
        stamp = self._stamp
        stamp.now_us, stamp.work = now_us, 0
        effects: list[Effect] = []
        cost = 0
        while cost + stamp.work < STEP_CHARS and (turn := self._queue.turn(TURN_EVENTS)) is not None:
            tenant, items = turn
            for index, item in enumerate(items):
                shard, event, traceparent = item
                case: Case | None = None
                if shard.lost:
                    pass
                elif isinstance(event, Chunk):
                    case = shard.cases.get(event.request_id)
                    cost += len(event.text)
                    if case is not None and (outs := case.hear(event)):
                        self._admit(shard, case, event.attempt, outs, effects)
                else:
                    case = self._take(shard, event, traceparent, effects)
                    cost += STEP_CHARS if isinstance(event, _Rest) else 0
                if case is not None and case.unread:
                    self._queue.put_back(tenant, [(shard, _Rest(case), None), *items[index + 1 :]])
                    break
                shard.queued -= 1
                self._backlog -= 1
                if cost + stamp.work >= STEP_CHARS:  # too much for one turn: the rest comes after the others
                    self._queue.put_back(tenant, items[index + 1 :])
                    break
            cost += _TURN_COST
        for partition in sorted(self._awaited):
            effects.extend(self.caught_up(partition, now_us, now_us))
        return effects

    def answer(self, look: Look, answer: Answer, now_us: int) -> list[Effect]:
        """Take what a check said; one to a question that nobody waits for is ignored."""
        asked = self._asked.pop(look.number, None)
        if asked is None:
            return []
        shard, case, attempt = asked
        self._stamp.now_us = now_us
        effects: list[Effect] = []
        self._admit(shard, case, attempt, case.answer(attempt, look, answer), effects)
        if case.over:
            shard.forget_if_over(case)
        return effects

    def _take(
        self, shard: Shard, event: StreamEvent | _Rest, traceparent: str | None, effects: list[Effect]
    ) -> Case | None:
        """Deal with anything but a chunk."""
        if isinstance(event, _Rest):
            case = event.case
            attempted = case.read()
        else:
            known = shard.case_of(event, self.policy, self._stamp)
            if known is None:
                return None
            case = known
            case.traceparent = traceparent or case.traceparent
            attempted = case.take(event)
        for attempt, outs in attempted:
            self._admit(shard, case, attempt, outs, effects)
        shard.forget_if_over(case)
        return case

    def _admit(self, shard: Shard, case: Case, attempt: int, outs: list[Out], effects: list[Effect]) -> None:
        """What a case says is done now, unless the log has it; while the shard listens it is held."""
        if shard.listening:
            shard.hold(case, attempt, outs)
            return
        for out in outs:
            if isinstance(out, Look) or case.new(out):
                self._perform(shard, case, attempt, out, effects)

    def _perform(self, shard: Shard, case: Case, attempt: int, out: Out, effects: list[Effect]) -> None:
        if isinstance(out, Look):
            self._asked[out.number] = (shard, case, attempt)
            effects.append(out)
        else:
            effects.append(Write(STREAMS, out, case.traceparent))
