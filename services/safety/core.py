"""The safety service without its I/O: events of the stream log in, events for it and questions to the checks out.

Time and ids come in as arguments. What is said does not depend on time, on how events are batched, or on when checks
answer; see ``run.py`` for why.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from schemas.stream import Chunk, Cleared, Recall
from services.policy import Policy
from services.safety.case import Case, StreamEvent
from services.safety.fair import FairQueue
from services.safety.looks import Answer, Look
from services.safety.shard import Said, Shard

STEP_CHARS: Final = 8_192
"""About as much is read in one ``step``; then the event loop may do something else."""

_EVENT_COST: Final = 32
"""What an event costs beside its characters, in characters."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An event to write to the stream log."""

    event: Recall | Cleared
    traceparent: str | None


Effect = Letter | Look


class _Item(NamedTuple):
    shard: Shard
    event: StreamEvent
    traceparent: str | None


class _Rest(NamedTuple):
    """A case with more to read than one slice."""

    shard: Shard
    case: Case


class Safety:
    """All partitions that this process holds.

    Args:
        policy: For requests that begin from now on; assign to ``policy`` to change it.
        source: Who writes the events.
    """

    def __init__(self, policy: Policy, source: str) -> None:
        self.policy = policy
        self._source = source
        self._shards: dict[int, Shard] = {}
        self._queue: FairQueue[_Item | _Rest] = FairQueue()  # bounded by the shell's room
        self._asked: dict[int, tuple[Shard, Case, int]] = {}  # look -> whose; bounded by open requests and windows
        self._numbers = itertools.count()
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
        self._queue.put(event.tenant, _Item(shard, event, traceparent))
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
        return self._effects(shard, shard.caught_up(), now_us)

    def step(self, now_us: int) -> tuple[list[Effect], int]:
        """Do some of the work. Returns what follows, and how many events were dealt with."""
        effects: list[Effect] = []
        events = chars = 0
        while chars < STEP_CHARS and (turn := self._queue.get()) is not None:
            tenant, item = turn
            case = item.case if isinstance(item, _Rest) else self._open(item)
            if isinstance(item, _Item):
                events += 1
                chars += _EVENT_COST + (len(item.event.text) if isinstance(item.event, Chunk) else 0)
            if case is not None:
                outs, more = case.read()
                for attempt, out in outs:
                    effects.extend(self._effects(item.shard, item.shard.admit(case, attempt, [out]), now_us))
                if more:
                    chars += STEP_CHARS
                    self._queue.put_back(tenant, _Rest(item.shard, case))
                    continue
                item.shard.forget_if_over(case)
            item.shard.queued -= 1
        for partition in sorted(self._awaited):
            effects.extend(self.caught_up(partition, now_us))
        return effects, events

    def answer(self, look: Look, answer: Answer, now_us: int) -> list[Effect]:
        """Take what a check said; one to a question that nobody waits for is ignored."""
        asked = self._asked.pop(look.number, None)
        if asked is None:
            return []
        shard, case, attempt = asked
        said = shard.admit(case, attempt, case.answer(attempt, look, answer))
        shard.forget_if_over(case)
        return self._effects(shard, said, now_us)

    def expire(self, now_us: int) -> int:
        """Forget requests that were never closed; returns how many."""
        return sum(shard.expire(now_us) for shard in self._shards.values())

    def _open(self, item: _Item) -> Case | None:
        case = item.shard.case_of(item.event, self.policy, self._numbers)
        if case is not None:
            case.traceparent = item.traceparent or case.traceparent
            case.take(item.event)
        return case

    def _effects(self, shard: Shard, said: list[Said], now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for case, attempt, out in said:
            if isinstance(out, Look):
                self._asked[out.number] = (shard, case, attempt)
                effects.append(out)
            else:
                effects.append(Letter(replace(out.event, at=now_us, source=self._source), case.traceparent))
        return effects
