"""One member of a simulated consumer group, with the real decision logic (``Core``) of a service.

It imitates ``services/processor/processor.py``. If the order of the steps changes there, change it here too.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from schemas.base import Event
from schemas.topics import Topic
from services.bus import LogClock, partition_for
from services.bus.groups.assignor import OwnedPartitions
from services.bus.groups.commit_tracker import CommitTracker
from services.bus.groups.held_partitions import HeldPartitions
from services.bus.groups.rewind import rewind_to_ms
from services.bus.read.log_clock import LogClocks
from services.bus.records import Partition, TopicPartitions
from services.processor import Core, Effect, RecordDone, Write
from services.simulator.kafka.broker import PARTITIONS, LogReader, LogRecord, SimulatedBroker, event_of
from services.simulator.kafka.groups import SimulatedGroup
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.kafka.producer import SimulatedProducer
from services.simulator.simulation import MS, SECOND

SLOWEST_TICK_US = SECOND
COMMIT_EVERY_US = 100 * MS
DRAIN_US = 2 * SECOND


@dataclass(frozen=True)
class Reading:
    """The topics that a member reads, where it starts, and whether it commits offsets.

    Attributes:
        rewind_ms: How far before the newest record the member starts to read a gained partition, in milliseconds. None
            to start at the committed offset.
        progress: A topic with results, such as ``ACCOUNTS``. If the newest result is older than the newest record, the
            member starts ``rewind_ms`` before the newest result. ``services/bus/groups/rewind.py`` has the exact rule.
    """

    topics: Sequence[Topic]
    rewind_ms: int | None = None
    progress: Topic | None = None
    commit: Literal["manual", "never"] = "never"


@dataclass(eq=False, slots=True)
class _Goal:
    partitions: TopicPartitions
    reached: Callable[[], None]


class SimulatedMember:
    """The membership of one process in one consumer group.

    Args:
        perform: Called with each effect that ``core`` returns, except ``Write`` and ``RecordDone``. The member handles
            these two itself.

    Attributes:
        companion: The membership of the same process in a second group; None if there is none.
    """

    def __init__(
        self,
        process: SimulatedProcess,
        broker: SimulatedBroker,
        group: SimulatedGroup,
        core: Core,
        reading: Reading,
        perform: Callable[[Effect], None] | None = None,
    ) -> None:
        self.process = process
        self.core = core
        self.companion: SimulatedMember | None = None
        self.member_id = ""
        self.generation = -1
        self.producer = SimulatedProducer(broker, process)
        self._broker = broker
        self._group = group
        self._reading = reading
        self._perform = perform
        self._partitions: HeldPartitions[_Goal] = HeldPartitions()
        self._commits = CommitTracker()
        self._clocks = LogClocks()
        self._readers: dict[Partition, LogReader] = {}
        self._held: dict[int, TopicPartitions] = {}
        self._deciding: set[int] = set()
        self._until_read: dict[int, _Goal] = {}
        self._outbox: deque[Write] = deque()
        self._alarm_us: int | None = None
        self._alarm_number = 0
        self._lost_membership = True
        self._commit_waits = False
        self._stepping = False
        self._leaving = False
        process.on_unreachable.append(lambda: group.watch(self))
        process.on_reachable.append(lambda: group.hear(self))

    # Membership

    @property
    def owned(self) -> OwnedPartitions:
        return OwnedPartitions(self.generation, frozenset(number for _, number in self._partitions.held))

    @property
    def now_us(self) -> int:
        return self.process.now_us

    @property
    def idle(self) -> bool:
        return not (self.core.backlog or self._outbox or self.producer.unacknowledged)

    @property
    def cores(self) -> tuple[Core, ...]:
        return (self.core,) if self.companion is None else (self.core, self.companion.core)

    def start(self) -> None:
        if self.companion is not None:
            self.companion.start()
        self.process.ask(self._group.join, self, self.owned)

    def stop(self, left: Callable[[], None]) -> None:
        """Stop reading, finish the current work within ``DRAIN_US``, commit, leave the group, and call ``left``."""
        self._leaving = True
        if self.companion is not None:
            self.companion.stop(lambda: None)
        for reader in self._readers.values():
            reader.close()
        self._drain(self.process.simulation.now_us + DRAIN_US, left)

    def _drain(self, end_us: int, left: Callable[[], None]) -> None:
        if not self.idle and self.process.simulation.now_us < end_us:
            self.process.after(5 * MS, self._drain, end_us, left)
            return
        self._commit_now()
        self.process.ask(self._group.leave, self)
        self.process.after(20 * MS, left)

    def on_expelled(self) -> None:
        self.generation = -1
        self.on_rebalance()

    def on_rebalance(self) -> None:
        if self._leaving:
            return
        self._lost_membership = self.generation < 0
        if self._reading.commit != "never":
            self._commit_now()
        self.process.ask(self._group.join, self, self.owned)

    def on_assigned(self, generation: int, numbers: list[int]) -> None:
        if self._leaving or generation < self.generation:
            return
        self.generation = generation
        self.process.note(f"generation {generation}: {numbers}")
        partitions = frozenset((topic.name, number) for topic in self._reading.topics for number in numbers)
        stale = self._reading.rewind_ms is None and self._lost_membership
        assignment, _ = self._partitions.assign(partitions, partitions if stale else frozenset())
        for partition in sorted(assignment.lost):
            if (reader := self._readers.pop(partition, None)) is not None:
                reader.close()
        self._commits.forget(sorted(assignment.lost))
        self.take_over(_numbers(assignment.lost | assignment.gained), numbers)
        if new := sorted(self._partitions.without_position):
            self.process.ask(self._find_starts, new, self.now_us)

    def take_over(self, changed: list[int], numbers: list[int]) -> None:
        for number in changed:
            if number in self._held:
                self._lose(number)
        held = {number: frozenset((topic.name, number) for topic in self._reading.topics) for number in numbers}
        gained = [number for number in numbers if number not in self._held]
        self._held = held
        for number in gained:
            self.core.gained(number)
            if self._reading.rewind_ms is None:
                self._deciding.add(number)
            else:
                self.catch_up(number)
        self._set_alarm()

    def _lose(self, number: int) -> None:
        del self._held[number]
        self._deciding.discard(number)
        self._until_read.pop(number, None)
        self.core.lost(number)

    # Reading

    def _find_starts(self, partitions: list[Partition], asked_us: int) -> None:
        broker, rewind_ms = self._broker, self._reading.rewind_ms
        ends = {partition: broker.end(partition) for partition in partitions}
        newest = {partition: at for partition in partitions if (at := broker.newest_ms(partition)) is not None}
        if rewind_ms is None:
            starts = {partition: self._group.committed.get(partition, 0) for partition in partitions}
        else:
            host_ms = self.process.host.now_us // 1_000
            end_ms = min(max(newest.values(), default=host_ms), host_ms)
            begins = {number: self.rewind_to_ms(number, end_ms, rewind_ms) for _, number in partitions}
            starts = {partition: broker.offset_for_time(partition, begins[partition[1]]) for partition in partitions}
        self.process.fire(self._start_reading, starts, newest, ends, asked_us)

    def rewind_to_ms(self, number: int, end_ms: int, rewind_ms: int) -> int:
        progress = self._reading.progress
        if progress is None:
            return end_ms - rewind_ms
        log = self._broker.log((progress.name, number))
        if not log:
            return rewind_to_ms(end_ms, 0, rewind_ms)
        since_us: int | None = getattr(event_of(log[-1]), "open_since", None)
        return rewind_to_ms(end_ms, log[-1].timestamp_ms, rewind_ms, None if since_us is None else since_us // 1_000)

    def _start_reading(
        self, starts: dict[Partition, int], newest_ms: dict[Partition, int], ends: dict[Partition, int], asked_us: int
    ) -> None:
        if self._leaving:
            return
        self._clocks.forget(starts)
        for partition in starts.keys() & self._readers.keys():
            self._readers[partition].clock = None
        for partition, at_ms in newest_ms.items():
            self._clocks.observe(self._broker.leaders[partition], at_ms, self.now_us)
        self._partitions.note_ends(ends, asked_us)
        for goal in self._partitions.start_at(starts):
            goal.reached()
        for partition in starts:
            position = self._partitions.positions.get(partition)
            if position is not None and partition not in self._readers:
                self._readers[partition] = LogReader(self._broker, self.process, partition, position, self._on_fetched)

    def _on_fetched(self, reader: LogReader, records: list[LogRecord]) -> None:
        partition, next_offset, commit = reader.partition, reader.position, self._reading.commit
        if commit == "manual":
            self._commits.read(partition, next_offset, [record.offset for record in records])
        core, now_us = self.core, self.now_us
        read, appended_us = core.read, self.log_clock(reader).appended_us
        for record in records:
            if effects := read(record, appended_us(record.timestamp_ms, now_us), now_us):
                self.perform_all(effects)
        if core.busy:
            self._step_soon()
        if partition[1] in self._deciding:
            self._set_alarm((partition[1],), now_us)
        if commit != "never":
            self._commit_soon()
        for goal in self._partitions.read({partition: next_offset}):
            goal.reached()

    def log_clock(self, reader: LogReader) -> LogClock:
        leader = self._broker.leaders[reader.partition]
        since_us = max(reader.since_us, self._partitions.read_up_to_us(reader.partition))
        if reader.clock is None or leader != reader.leader:
            reader.clock, reader.leader = self._clocks.clock(reader.partition, leader, since_us), leader
        reader.clock.since_us = since_us
        return reader.clock

    def read_to_end(self, partitions: TopicPartitions, reached: Callable[[], None]) -> _Goal:
        """Call ``reached`` when the member has read every record that is in ``partitions`` now."""
        goal = _Goal(partitions, reached)
        self.process.ask(self._find_ends, goal, self.now_us)
        return goal

    def _find_ends(self, goal: _Goal, asked_us: int) -> None:
        ends = {partition: self._broker.end(partition) for partition in sorted(goal.partitions)}
        self.process.fire(self._on_ends, goal, ends, asked_us)

    def _on_ends(self, goal: _Goal, ends: dict[Partition, int], asked_us: int) -> None:
        if goal.partitions <= self._partitions.held and self._partitions.set_goal(goal, ends, asked_us):
            goal.reached()

    # Deciding

    def catch_up(self, number: int) -> None:
        """Read partition ``number`` of each topic up to its current end. Then call ``core.caught_up``."""
        asked_us = self.now_us

        def caught_up() -> None:
            if self._until_read.get(number) is goal:
                del self._until_read[number]
                self._deciding.add(number)
                self.perform_all(self.core.caught_up(number, asked_us, self.now_us))
                self._set_alarm()

        goal = self._until_read[number] = self.read_to_end(self._held[number], caught_up)

    def tick(self, number: int) -> None:
        """Read partition ``number`` of each topic up to its current end. Then call ``core.tick``."""
        known_us = self.now_us

        def read() -> None:
            if self._until_read.get(number) is goal:
                del self._until_read[number]
                self.perform_all(self.core.tick(number, known_us, self.now_us))
                self._set_alarm()

        goal = self._until_read[number] = self.read_to_end(self._held[number], read)

    def _set_alarm(self, changed: Iterable[int] | None = None, now_us: int | None = None) -> None:
        if self._leaving:
            return
        now_us = self.now_us if now_us is None else now_us
        next_us = None if changed is None else self._alarm_us
        for number in sorted(self._deciding) if changed is None else changed:
            if number in self._until_read:
                continue
            at_us = self.core.alarm_us(number, now_us)
            if at_us is None:
                continue
            if at_us <= now_us:
                self.tick(number)
            elif next_us is None or at_us < next_us:
                next_us = at_us
        if next_us == self._alarm_us:
            return
        self._alarm_us = next_us
        self._alarm_number += 1
        if next_us is not None:
            self.process.after(min(next_us - now_us, SLOWEST_TICK_US), self._on_alarm, self._alarm_number)

    def _on_alarm(self, number: int) -> None:
        if number == self._alarm_number:
            self._alarm_us = None
            self._set_alarm()

    def _step_soon(self) -> None:
        if not self._stepping:
            self._stepping = True
            self.process.after(200, self._step)

    def _step(self) -> None:
        self._stepping = False
        self.perform_all(self.core.step(self.now_us))
        if self.core.busy:
            self._step_soon()
        elif self._alarm_us is None:
            self._set_alarm()

    # Writing

    def perform_all(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._outbox.append(effect)
            elif isinstance(effect, RecordDone):
                self.done(effect.position)
            elif self._perform is not None:
                self._perform(effect)
        if self.core.busy:
            self._step_soon()
        if self._outbox:
            self.send()

    def send(self) -> None:
        """Pass the waiting events to the producer, in order. Drop events for partitions that the member has lost."""
        outbox = self._outbox
        while outbox:
            write = outbox.popleft()
            event = write.event
            acknowledged = None if write.done is None else partial(self.done, write.done)
            if not isinstance(event, Event) or partition_for(event.request_id, PARTITIONS) in self._held:
                self.producer.post(write.topic, event, write.traceparent, acknowledged)
            elif acknowledged is not None:
                acknowledged()

    # Commits

    def done(self, position: tuple[str, int, int]) -> None:
        topic, number, offset = position
        self._commits.done((topic, number), offset)
        self._commit_soon()

    def _commit_soon(self) -> None:
        if not self._commit_waits and self._reading.commit != "never":
            self._commit_waits = True
            self.process.after(COMMIT_EVERY_US, self._on_commit_due)

    def _on_commit_due(self) -> None:
        self._commit_waits = False
        self._commit_now()

    def _commit_now(self) -> None:
        positions = self._commits.due() if self._reading.commit != "never" else {}
        if positions:
            self.process.ask(self._commit, self.generation, positions)

    def _commit(self, generation: int, positions: dict[Partition, int]) -> None:
        if self._group.commit(self, generation, positions):
            self.process.fire(self._commits.committed, positions)


def _numbers(partitions: TopicPartitions) -> list[int]:
    return sorted({number for _, number in partitions})
