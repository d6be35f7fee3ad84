"""The shell round a core: membership, replay, alarms, back-pressure, the order of writes, commits, drain, readiness."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.base import Event
from schemas.errors import MalformedEvent
from schemas.topics import Topic
from services.bus import (
    Assignment,
    BusError,
    BusSettings,
    GroupReader,
    Position,
    Producer,
    Received,
    Refused,
    Room,
    Unread,
    partition_for,
)
from services.processor.core import Core, Done, Effect, Write
from services.processor.log_clock import LogClock
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.runtime.metrics import EVENT_AGE, LAG_RECORDS, LAG_SECONDS, REPLAYED
from services.runtime.tasks import start_in

_log = logger("processor")

SLOWEST_TICK_S: Final = 1.0
"""Alarms are looked at this often at least, so that a step of the wall clock delays nothing for longer."""

FULL_S: Final = 0.1
"""How soon alarms are looked at again while the outbox is full: the broker is away, and what is due stays due."""

WATCH_S: Final = 1.0
"""How often it is asked how far behind the end of the log the reader is."""

STALE_S: Final = 10.0
"""A reader that for so long could not find out whether it had read everything is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, and how.

    Attributes:
        group: The consumer group.
        topics: All topics; those of equal partition count are dealt out together.
        rewind_ms: A number that is gained is read from this long ago; None reads on where the group committed, and
            commits what is done.
        newer: Records written for a newer reader come as ``Unread`` too.
        instance_id: Static membership.
        limit: Most records taken in and not dealt with, writes on their way to the producer included.
        drain_s: How long work under way may take when the process is told to stop.
    """

    group: str
    topics: Sequence[Topic]
    rewind_ms: int | None = None
    newer: bool = False
    instance_id: str | None = None
    limit: int = 10_000
    drain_s: float = 1.0


class Processor:
    """One member of a group.

    Args:
        settings: Where the broker is.
        reading: What is read, and how.
        core: What decides.
        producer: Writes; started and stopped here.
        perform: Told of every effect that is neither ``Write`` nor ``Done``.
        written: Told of every event that was handed to the producer.
        unwritten: Told of every write that the broker did not take; it is logged already.
        on_ready: Called once, when it is ready for the first time.
    """

    def __init__(
        self,
        settings: BusSettings,
        reading: Reading,
        core: Core,
        producer: Producer,
        *,
        perform: Callable[[Effect], None] | None = None,
        written: Callable[[Write], None] | None = None,
        unwritten: Callable[[Write], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._reading = reading
        self._partitions = settings.partitions
        self._core = core
        self._producer = producer
        self._perform = perform
        self._written = written
        self._unwritten = unwritten
        self._room = Room(reading.limit)
        self._outbox: deque[Write] = deque()  # bounded by the room
        self._unacknowledged = 0
        self._outbox_filled = asyncio.Event()
        self._work = asyncio.Event()
        self._clocks: dict[int | None, LogClock] = {}  # by the broker that leads a partition: its clock is the log's
        self._held: dict[int, frozenset[tuple[str, int]]] = {}  # number -> its partitions
        self._deciding: set[int] = set()
        self._until_read: dict[int, asyncio.Task[None]] = {}  # number -> what waits until it is read to its end
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_us: int | None = None
        self._answered_us = 0  # when the broker last said where the log ends
        self._known_us = 0  # everything that was appended before this was read
        self._on_ready = on_ready
        self._draining = False
        self._tasks: asyncio.TaskGroup | None = None
        self._reader = GroupReader(
            settings,
            topics=reading.topics,
            group=reading.group,
            handler=self._on_records,
            room=self._room,
            newer=reading.newer,
            on_assigned=self._on_assigned,
            commit="manual" if reading.rewind_ms is None else "never",
            rewind_ms=reading.rewind_ms,
            on_newest=self._on_newest,
            instance_id=reading.instance_id,
        )

    @property
    def ready(self) -> bool:
        """Whether the group was joined, the broker answers, and a core that folds the log is at its end."""
        seen_us = self._answered_us if self._reading.rewind_ms is None else self._known_us
        fresh = now_us() - seen_us < STALE_S * 1e6
        return self._reader.joined and self._deciding == self._held.keys() and fresh

    async def run(self) -> None:
        """Work until cancelled; then finish what is under way, write what is decided, commit, and leave the group.

        Raises:
            UserError: The broker refuses the credentials, or does not let us read or write.
        """
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (self._send(), self._step(), self._watch(), self._know()):
                    self._tasks.create_task(work)
                await self._read()
        finally:
            self._tasks = None
            if self._alarm is not None:
                self._alarm.cancel()
            await self._producer.stop()

    def do(self, effects: Iterable[Effect]) -> None:
        """Bring these about, in order."""
        for effect in effects:
            if isinstance(effect, Write):
                self._outbox.append(effect)
            elif isinstance(effect, Done):
                self._reader.done(*effect.place)
            elif self._perform is not None:
                self._perform(effect)
        if self._outbox:
            self._outbox_filled.set()
        if self._core.busy:
            self._work.set()
        self._keep_room()

    async def _read(self) -> None:
        """Read until cancelled; before the group is left, what is under way comes to its end."""
        reading = asyncio.ensure_future(self._reader.run())
        try:
            await asyncio.wait({reading})
            reading.result()
        finally:
            self._draining = True
            self._keep_room()
            await self._drain()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._reading.drain_s):
                while self._core.backlog or self._outbox or self._unacknowledged:  # noqa: ASYNC110 - a few times only
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass  # what is left is done by whoever has the partitions next

    def _on_assigned(self, assignment: Assignment) -> None:
        lost, gained = _numbers(assignment.lost), _numbers(assignment.gained)
        for number in sorted(lost | gained):
            if number in self._held:
                self._lose(number)
        held = {number: frozenset(p for p in assignment.held if p[1] == number) for number in _numbers(assignment.held)}
        self._check_whole(held)
        for number in sorted(held.keys() - self._held.keys()):
            self._core.gained(number)
            if self._reading.rewind_ms is None:  # there is no past to know
                self._deciding.add(number)
            else:
                self._wait_until_read(number, self._catch_up(number))
        self._held = held
        _log.info("%s: %d partition(s), %d gained, %d lost", self._reading.group, len(held), len(gained), len(lost))
        self._set_alarm()
        self._tell_ready()

    def _on_newest(self, appended_ms: Mapping[tuple[str, int], int]) -> None:
        """What is read again must not look new: how far the broker's clock is off is known from its newest record."""
        for partition, timestamp_ms in appended_ms.items():
            self._clock_of(partition).appended_us(timestamp_ms, now_us())

    def _clock_of(self, partition: tuple[str, int]) -> LogClock:
        leader = self._reader.leader(partition)
        return self._clocks.get(leader) or self._clocks.setdefault(leader, LogClock())

    def _lose(self, number: int) -> None:
        del self._held[number]
        self._deciding.discard(number)
        if (task := self._until_read.pop(number, None)) is not None:
            task.cancel()
        self._core.lost(number)
        self._keep_room()

    def _check_whole(self, held: dict[int, frozenset[tuple[str, int]]]) -> None:
        for number, partitions in held.items():
            wanted = {topic.name for topic in self._reading.topics if number < topic.partitions(self._partitions)}
            missing = wanted - {topic for topic, _ in partitions}
            if missing:
                msg = f"partition {number} is held, but not of {', '.join(sorted(missing))}: do all members of group "
                raise RuntimeError(f"{msg}{self._reading.group} have one version?")

    def _wait_until_read(self, number: int, then: Coroutine[Any, Any, None]) -> None:
        if (task := start_in(self._tasks, then)) is not None:
            self._until_read[number] = task

    async def _catch_up(self, number: int) -> None:
        asked_us = now_us()
        if await self._reader.read_to_end(self._held[number]):
            del self._until_read[number]
            self._deciding.add(number)
            self.do(self._core.caught_up(number, asked_us, now_us()))
            self._set_alarm()
            if self._deciding == self._held.keys():
                self._known_us = asked_us
            self._tell_ready()

    async def _tick(self, number: int) -> None:
        known_us = now_us()
        if await self._reader.read_to_end(self._held[number]):
            del self._until_read[number]
            self.do(self._core.tick(number, known_us, now_us()))
            self._set_alarm()

    def _on_records(self, records: Sequence[Received | Unread]) -> None:
        read, now, core = self._core.read, now_us(), self._core
        at_us, last, clock = now, ("", -1), LogClock()
        for record in records:
            partition = (record.topic, record.partition)
            if partition != last:
                last, clock = partition, self._clock_of(partition)
            at_us = clock.appended_us(record.timestamp_ms, now)
            if effects := read(record, at_us, now):
                self.do(effects)
        EVENT_AGE.labels(self._reading.group).observe((now - at_us) / 1_000)
        if len(self._deciding) < len(self._held):
            replayed = sum(record.partition not in self._deciding for record in records)
            REPLAYED.labels(self._reading.group).inc(replayed)
        if core.busy:
            self._work.set()
        self._keep_room()
        self._set_alarm()

    def _keep_room(self) -> None:
        taken = self._core.backlog + len(self._outbox)
        self._room.occupy(taken + self._reading.limit if self._draining else taken)  # draining, nothing is taken in

    def _on_alarm(self) -> None:
        self._alarm = self._alarm_us = None
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Sleep until the next alarm; a number whose alarm is due is read to its end first, and then told the time."""
        now, full = now_us(), self._room.free <= 0
        next_us: int | None = None
        for number in self._deciding:
            if number in self._until_read:
                continue
            at_us = self._core.alarm_us(number, now)
            if at_us is None:
                continue
            if at_us <= now and not full:
                self._wait_until_read(number, self._tick(number))
            else:
                at_us = max(at_us, now + int(FULL_S * 1e6)) if full else at_us
                next_us = at_us if next_us is None else min(next_us, at_us)
        if next_us == self._alarm_us and self._alarm is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_us = next_us
        if next_us is not None:
            wait_s = min(max(next_us - now, 0) / 1e6, SLOWEST_TICK_S)
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._on_alarm)

    async def _send(self) -> None:
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            while self._outbox:
                await self._post(self._outbox.popleft())
                self._keep_room()

    async def _post(self, write: Write) -> None:
        event = write.event
        if isinstance(event, Event) and partition_for(event.request_id, self._partitions) not in self._held:
            self._finish(write)  # its partition is another member's
            return
        try:
            acknowledged = await self._producer.post(write.topic, event, traceparent=write.traceparent)
        except MalformedEvent as error:  # such as a prompt at the size limit, which is over it when it is written again
            _log.error("%s: an event cannot be written: %s", self._reading.group, error)
            self._finish(write)
            return
        self._unacknowledged += 1
        acknowledged.add_done_callback(lambda ack: self._on_acknowledged(write, ack))
        if self._written is not None:
            self._written(write)

    def _on_acknowledged(self, write: Write, ack: asyncio.Future[Position]) -> None:
        self._unacknowledged -= 1
        error = None if ack.cancelled() else ack.exception()
        if isinstance(error, BusError):
            _log.warning("%s: an event was not written: %s", self._reading.group, error)
            if self._unwritten is not None:
                self._unwritten(write)
        if error is None or isinstance(error, Refused):  # what is refused for good need not be tried again
            self._finish(write)

    def _finish(self, write: Write) -> None:
        if write.done is not None:
            self._reader.done(*write.done)

    async def _step(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._core.busy:
                self.do(self._core.step(now_us()))
                await asyncio.sleep(0)

    async def _watch(self) -> None:
        """Tell how far behind the end of the log we are, and how fresh the broker's word is."""
        group, began_us = self._reading.group, now_us()
        while True:
            asked_us = now_us()
            LAG_RECORDS.labels(group).set(await self._reader.lag())
            self._answered_us = asked_us
            LAG_SECONDS.labels(group).set((now_us() - (self._known_us or began_us)) / 1e6)
            self._tell_ready()
            await asyncio.sleep(WATCH_S)

    async def _know(self) -> None:
        """Find out again and again up to when everything was read."""
        while True:
            asked_us = now_us()
            held = frozenset(partition for each in self._held.values() for partition in each)
            if await self._reader.read_to_end(held) and self._reader.joined:
                self._known_us = asked_us
                self._tell_ready()
            await asyncio.sleep(WATCH_S)

    def _tell_ready(self) -> None:
        if self._on_ready is not None and self.ready:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()


def _numbers(partitions: Iterable[tuple[str, int]]) -> frozenset[int]:
    return frozenset(number for _, number in partitions)
