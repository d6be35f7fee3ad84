"""The safety service, no I/O: events of the stream log in, events for it and questions to the checks out.

Time and ids come in as arguments. What is said does not depend on time, on how events are batched, or on when checks
answer; see ``run.py`` for why.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schemas.stream import Chunk, Cleared, Recall, StreamEvent
from services.policy import Policy
from services.safety.case import Case
from services.safety.fair import FairQueue
from services.safety.looks import Answer, Look, Out
from services.safety.shard import Shard
from services.safety.verdicts import Stamp

STEP_CHARS: Final = 2_048
"""About as much is read in one ``step``, or as much work done; then the event loop may do something else."""

TURN_EVENTS: Final = 16
"""Most events of one tenant before it is another's turn."""

_TURN_COST: Final = 256
"""What a turn costs beside its chunks' characters, in characters."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An event to write to the stream log."""

    event: Recall | Cleared
    traceparent: str | None


Effect = Letter | Look


@dataclass(frozen=True, slots=True)
class _Rest:
    """A case with more to read than one slice."""

    case: Case


_Item = tuple[Shard, StreamEvent | _Rest, str | None]
"""An event or the rest of one, whose partition, and its traceparent."""


class Safety:
    """All partitions that this process holds.

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

    def assign(self, partitions: Iterable[int]) -> None:
        """Hold these partitions and no other, from their requests' beginnings: everything known is forgotten."""
        self._shards = {partition: Shard(listening=True) for partition in partitions}
        self._queue.clear()
        self._asked.clear()
        self._awaited.clear()

    def take(self, partition: int, event: StreamEvent, traceparent: str | None) -> bool:
        """Queue an event of the log. Returns whether it was taken: an event of a foreign partition is not."""
        shard = self._shards.get(partition)
        if shard is None:
            return False
        shard.queued += 1
        self._queue.put(event.tenant, (shard, event, traceparent))
        return True

    def caught_up(self, partition: int, now_us: int) -> list[Effect]:
        """Everything that was on the log when the partition was assigned has been taken."""
        shard = self._shards.get(partition)
        if shard is None or not shard.listening:
            return []
        if shard.queued:
            self._awaited.add(partition)
            return []
        self._awaited.discard(partition)
        self._stamp.now_us = now_us
        effects: list[Effect] = []
        for case, attempt, out in shard.caught_up():
            self._perform(shard, case, attempt, out, effects)
        return effects

    def step(self, now_us: int) -> tuple[list[Effect], int]:
        """Do some of the work. Returns what follows, and how many events were dealt with."""
        stamp = self._stamp
        stamp.now_us, stamp.work = now_us, 0
        effects: list[Effect] = []
        events = cost = 0
        while cost + stamp.work < STEP_CHARS and (turn := self._queue.turn(TURN_EVENTS)) is not None:
            tenant, items = turn
            for index, item in enumerate(items):
                shard, event, traceparent = item
                if isinstance(event, Chunk):
                    case = shard.cases.get(event.request_id)
                    cost += len(event.text)
                    if case is not None and (outs := case.hear(event)):
                        self._admit(shard, case, event.attempt, outs, effects)
                else:
                    case = self._take(shard, event, traceparent, effects)
                    cost += STEP_CHARS if isinstance(event, _Rest) else 0
                events += 1
                if case is not None and case.unread:
                    self._queue.put_back(tenant, [(shard, _Rest(case), None), *items[index + 1 :]])
                    events -= 1  # it is counted when its rest is read
                    break
                shard.queued -= 1
                if cost + stamp.work >= STEP_CHARS:  # too much for one turn: the rest comes after the others
                    self._queue.put_back(tenant, items[index + 1 :])
                    break
            cost += _TURN_COST
        for partition in sorted(self._awaited):
            effects.extend(self.caught_up(partition, now_us))
        return effects, events

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

    def expire(self, now_us: int) -> int:
        """Forget requests that were never closed; returns how many."""
        return sum(shard.expire(now_us) for shard in self._shards.values())

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
            effects.append(Letter(out, case.traceparent))
