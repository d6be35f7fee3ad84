"""Read the log as a member of a consumer group, and pass its records to a ``Core``.

The methods of the core return effects, such as events to write. The processor performs these effects.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.topics import Topic
from services.bus import (
    Assignment,
    BusSettings,
    GroupReader,
    InFlightLimit,
    Partition,
    Producer,
    Received,
    RecordFilter,
    TopicPartitions,
    UnreadableRecord,
    partition_for,
)
from services.processor.core import Core, Effect, RecordDone, Write
from services.processor.pending_writes import PendingWrites
from services.processor.skew import SkewMeter
from services.runtime.clock import steady_us
from services.runtime.logging import logger
from services.runtime.metrics import CLOCK_SKEW, EVENT_AGE, LAG_RECORDS, LAG_SECONDS, REPLAYED
from services.runtime.task_groups import start_in

_log = logger("processor")

SLOWEST_TICK_S: Final = 1.0
"""Maximum time between two checks of the alarms, in seconds."""

FULL_RETRY_S: Final = 0.1
"""Time in seconds until the next check of the alarms while ``ProcessorConfig.limit`` is reached."""

LAG_INTERVAL_S: Final = 1.0
"""Interval between two requests to the broker for the end of the log, in seconds."""

STALE_S: Final = 10.0
"""Time in seconds. A processor with ``rewind_ms`` is not ready if it has not reached the end of the log for this long.

A processor without ``rewind_ms`` is not ready if the broker has not answered for this long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorConfig:
    """Which topics a processor reads, and how.

    Attributes:
        topics: The topics to read.
        rewind_ms: Reading starts this many milliseconds before the newest record, and no offset is committed. None
            means that reading starts at the committed offset.
        progress_topic: A topic with one result for each closed request, such as ``railbus.accounts``. If it is set,
            ``rewind_ms`` counts back from the newest result for a partition, not from the newest record.
            ``services/bus/groups/rewind.py`` has the exact rule.
        record_filter: A record for which this returns false is skipped without being decoded.
        include_newer: Whether the core gets an ``UnreadableRecord`` for each record that only a newer version can read.
        instance_id: Instance id for static membership in the group.
        limit: Maximum number of unprocessed records plus unsent events. When it is reached, reading pauses.
        drain_s: Maximum time to finish work in progress when the processor stops, in seconds.
        least_bytes: Minimum size of a fetch (Kafka's ``fetch.min.bytes``).
        clock: Returns the time in microseconds since the epoch. It must never go backwards;
            ``services.runtime.clock.steady_us`` is such a clock.
    """

    group: str
    topics: Sequence[Topic]
    rewind_ms: int | None = None
    progress_topic: Topic | None = None
    record_filter: RecordFilter | None = None
    include_newer: bool = False
    instance_id: str | None = None
    limit: int = 10_000
    drain_s: float = 1.0
    least_bytes: int = 1
    clock: Callable[[], int] = steady_us


class Processor:
    """One member of a consumer group, which runs a core.

    Args:
        producer: Writes the core's events. The processor starts and stops it. None if the core writes no events.
        perform: Called with each effect that the service defines itself. The processor performs ``Write`` and
            ``RecordDone``.
        on_written: Called after the producer accepted an event. The broker has not acknowledged it yet.
        on_not_written: Called if the producer accepted an event and then could not write it to the broker.
        on_ready: Called once, when ``ready`` is true for the first time.
    """

    def __init__(
        self,
        settings: BusSettings,
        config: ProcessorConfig,
        core: Core,
        producer: Producer | None,
        *,
        perform: Callable[[Effect], None] | None = None,
        on_written: Callable[[Write], None] | None = None,
        on_not_written: Callable[[Write], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._clock = config.clock
        self._partitions = settings.partitions
        self._core = core
        self._producer = producer
        self._perform = perform
        self._in_flight = InFlightLimit(config.limit)
        self._work = asyncio.Event()
        self._held: dict[int, TopicPartitions] = {}  # partition number -> its partitions
        self._deciding: set[int] = set()
        self._until_read: dict[int, asyncio.Task[None]] = {}  # partition number -> task that reads it to its end
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_us: int | None = None
        self._answered_us = 0  # time of the last request for the log's end that the broker answered
        self._known_us = 0  # all records appended before this time were read
        self._on_ready = on_ready
        self._skews = SkewMeter()
        self._event_age = EVENT_AGE.labels(config.group)
        self._replayed = REPLAYED.labels(config.group)
        self._draining = False
        self._tasks: asyncio.TaskGroup | None = None
        self._reader = GroupReader(
            settings,
            topics=config.topics,
            group=config.group,
            handler=self._on_records,
            record_filter=config.record_filter,
            in_flight_limit=self._in_flight,
            include_newer=config.include_newer,
            on_assigned=self._on_assigned,
            commit="manual" if config.rewind_ms is None else "never",
            rewind_ms=config.rewind_ms,
            progress_topic=config.progress_topic,
            instance_id=config.instance_id,
            least_bytes=config.least_bytes,
            clock=config.clock,
        )
        self._pending_writes = PendingWrites(
            producer,
            group=config.group,
            holds=lambda request_id: partition_for(request_id, self._partitions) in self._held,
            on_sent=self._update_limit,
            on_finished=lambda position: self._reader.done(*position),
            on_written=on_written,
            on_not_written=on_not_written,
        )

    @property
    def ready(self) -> bool:
        """Whether this member has joined the group, has read all its partitions to the end, and reaches the broker."""
        seen_us = self._answered_us if self._config.rewind_ms is None else self._known_us
        fresh = self._clock() - seen_us < STALE_S * 1e6
        return self._reader.joined and self._deciding == self._held.keys() and fresh

    async def run(self) -> None:
        """Process records until cancelled. Then finish work in progress, for at most ``drain_s``, and leave the group.

        Raises:
            UserError: The broker refuses the credentials, or does not allow this service to read or to write.
        """
        if self._producer is not None:
            await self._producer.start()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (self._pending_writes.send(), self._step(), self._report_lag()):
                    self._tasks.create_task(work)
                await self._read()
        finally:
            self._tasks = None
            if self._alarm is not None:
                self._alarm.cancel()
            if self._producer is not None:
                await self._producer.stop()

    def perform_all(self, effects: Iterable[Effect]) -> None:
        self._perform_each(effects)
        if self._core.busy:
            self._work.set()
        self._update_limit()

    def _perform_each(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if type(effect) is Write:
                self._pending_writes.append(effect)
            elif type(effect) is RecordDone:
                self._reader.done(*effect.position)
            elif self._perform is not None:
                self._perform(effect)

    async def _read(self) -> None:
        reader_task = asyncio.ensure_future(self._reader.run())
        try:
            await asyncio.wait({reader_task})
            reader_task.result()
        finally:
            self._draining = True
            self._update_limit()
            await self._drain()
            reader_task.cancel()
            await asyncio.gather(reader_task, return_exceptions=True)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._config.drain_s):
                while self._core.backlog or self._pending_writes.busy:  # noqa: ASYNC110 - a few times only
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass  # the next holder of the partitions does the remaining work

    def _on_assigned(self, assignment: Assignment) -> None:
        lost, gained = _numbers(assignment.lost), _numbers(assignment.gained)
        for number in sorted(lost | gained):
            if number in self._held:
                self._lose(number)
        held = {number: frozenset(p for p in assignment.held if p[1] == number) for number in _numbers(assignment.held)}
        self._check_whole(held)
        for number in sorted(held.keys() - self._held.keys()):
            self._core.gained(number)
            if self._config.rewind_ms is None:  # no earlier records have to be read
                self._deciding.add(number)
            else:
                self._wait_until_read(number, self._catch_up(number))
        self._held = held
        _log.info("%s: %d partition(s), %d gained, %d lost", self._config.group, len(held), len(gained), len(lost))
        self._set_alarm()
        self._tell_ready()

    def _lose(self, number: int) -> None:
        del self._held[number]
        self._deciding.discard(number)
        if (task := self._until_read.pop(number, None)) is not None:
            task.cancel()
        self._core.lost(number)
        self._update_limit()

    def _check_whole(self, held: dict[int, TopicPartitions]) -> None:
        for number, partitions in held.items():
            wanted = {topic.name for topic in self._config.topics if number < topic.partitions(self._partitions)}
            missing = wanted - {topic for topic, _ in partitions}
            if missing:
                names = ", ".join(sorted(missing))
                msg = f"partition {number} is assigned without {names}: run one version of all members of group "
                raise RuntimeError(msg + self._config.group)

    def _wait_until_read(self, number: int, then: Coroutine[Any, Any, None]) -> None:
        if (task := start_in(self._tasks, then)) is not None:
            self._until_read[number] = task

    async def _catch_up(self, number: int) -> None:
        asked_us = self._clock()
        if await self._reader.read_to_end(self._held[number]):
            del self._until_read[number]
            self._deciding.add(number)
            self.perform_all(self._core.caught_up(number, asked_us, self._clock()))
            self._set_alarm()
            if self._deciding == self._held.keys():
                self._known_us = asked_us
            self._tell_ready()

    async def _tick(self, number: int) -> None:
        known_us = self._clock()
        if await self._reader.read_to_end(self._held[number]):
            del self._until_read[number]
            self.perform_all(self._core.tick(number, known_us, self._clock()))
            self._set_alarm()

    def _on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        read, now, core, reader = self._core.read, self._clock(), self._core, self._reader
        at_us, topic, number, clock = now, "", -1, None
        numbers: set[int] = set()
        for record in records:
            if clock is None or record.partition != number or record.topic != topic:
                topic, number = record.topic, record.partition
                clock = reader.log_clock((topic, number))
                numbers.add(number)
            at_us = clock.appended_us(record.timestamp_ms, now)
            if effects := read(record, at_us, now):
                self._perform_each(effects)
        # One record of each batch is enough.
        self._note_skew(records[-1], now)
        self._event_age.observe((now - at_us) / 1_000)
        if len(self._deciding) < len(self._held):
            replayed = sum(record.partition not in self._deciding for record in records)
            self._replayed.inc(replayed)
        if core.busy:
            self._work.set()
        self._update_limit()
        self._set_alarm(numbers & self._deciding)

    def _note_skew(self, record: Received | UnreadableRecord, now: int) -> None:
        if isinstance(record, UnreadableRecord):
            return
        if (found := self._skews.note(record.event, record.timestamp_ms, now)) is not None:
            _log.warning(
                "the clock of %s is %+.0f ms from the broker's: deadlines do not depend on it, but times in events and"
                " reports are wrong; synchronise the clocks of both hosts (NTP)", *found
            )  # fmt: skip

    def _update_limit(self) -> None:
        taken = self._core.backlog + len(self._pending_writes)
        # While draining, no more records are read.
        self._in_flight.set_in_flight(taken + self._config.limit if self._draining else taken)

    def _on_alarm(self) -> None:
        self._alarm = self._alarm_us = None
        self._set_alarm()

    def _set_alarm(self, changed: Iterable[int] | None = None) -> None:
        now, full = self._clock(), self._in_flight.free <= 0
        next_us = None if changed is None else self._alarm_us
        for number in self._deciding if changed is None else changed:
            if number in self._until_read:
                continue
            at_us = self._core.alarm_us(number, now)
            if at_us is None:
                continue
            if at_us <= now and not full:
                # An alarm is due: read the partition number to its end, and then call ``tick``.
                self._wait_until_read(number, self._tick(number))
            else:
                at_us = max(at_us, now + int(FULL_RETRY_S * 1e6)) if full else at_us
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

    async def _step(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._core.busy:
                self.perform_all(self._core.step(self._clock()))
                if self._core.busy:
                    await asyncio.sleep(0)
            if self._alarm is None:  # this work may have changed alarms
                self._set_alarm()

    async def _report_lag(self) -> None:
        group, began_us = self._config.group, self._clock()
        to_end: asyncio.Future[None] | None = None
        try:
            while True:
                asked_us = self._clock()
                if to_end is None:
                    to_end = asyncio.ensure_future(self._note_known_time(asked_us))
                await asyncio.wait({to_end}, timeout=LAG_INTERVAL_S)
                # While reading keeps up with the log, ``read_to_end`` has also measured the lag.
                if to_end.done():
                    to_end.result()
                    to_end, lag = None, self._reader.last_lag
                else:
                    asked_us = self._clock()
                    lag = await self._reader.lag()
                self._answered_us = asked_us
                LAG_RECORDS.labels(group).set(lag)
                for service, skew_ms in self._skews.worst_ms(self._clock()).items():
                    CLOCK_SKEW.labels(service).set(skew_ms)
                LAG_SECONDS.labels(group).set((self._clock() - (self._known_us or began_us)) / 1e6)
                self._tell_ready()
                if to_end is None:
                    await asyncio.sleep(LAG_INTERVAL_S)
        finally:
            if to_end is not None:
                to_end.cancel()

    async def _note_known_time(self, asked_us: int) -> None:
        held = frozenset(partition for each in self._held.values() for partition in each)
        if await self._reader.read_to_end(held) and self._reader.joined:
            self._known_us = asked_us

    def _tell_ready(self) -> None:
        if self._on_ready is not None and self.ready:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()


def _numbers(partitions: Iterable[Partition]) -> frozenset[int]:
    return frozenset(number for _, number in partitions)
