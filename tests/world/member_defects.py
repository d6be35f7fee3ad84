"""Deliberate defects of simulated group members, in rebalances, reading, timers, commits and clocks."""

from services.bus import BrokerOffset, LogClock, Received
from services.bus.groups.rewind import rewind_to_ms
from services.bus.records import Partition
from services.simulator.kafka.broker import LogReader
from services.simulator.kafka.member import SimulatedMember


class DropsKept(SimulatedMember):
    """Defect: at a rebalance, the member forgets the state of each partition that it keeps.

    The member does not read these partitions again, so it does not rebuild the forgotten state.
    """

    def on_assigned(self, generation: int, numbers: list[int]) -> None:
        kept = [number for number in numbers if number in self._deciding]
        super().on_assigned(generation, numbers)
        for number in kept:
            if number in self._deciding:
                self.core.lost(number)
                self.core.gained(number)
                now_us = self.now_us
                self.perform_all(self.core.caught_up(number, now_us, now_us))


class TicksUnread(SimulatedMember):
    """Defect: when a timer expires, the core decides before the log is read to its end."""

    def tick(self, number: int) -> None:
        now_us = self.now_us
        self._until_read[number] = None  # type: ignore[assignment] # nothing is awaited
        self.process.after(1_000, self._tick_now, number, now_us)

    def _tick_now(self, number: int, known_us: int) -> None:
        if number in self._until_read:
            del self._until_read[number]
            self.perform_all(self.core.tick(number, known_us, self.now_us))
            self._set_alarm()


class CommitsEarly(SimulatedMember):
    """Defect: the offset of a record is committed as soon as the record is read, before it is processed."""

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        super()._on_fetched(reader, records)
        for record in records:
            self.done((record.topic, record.partition, record.offset))


class DecidesByTimeOfDay(SimulatedMember):
    """Defect: the member's clock is the host's wall clock, which may be set to another time."""

    @property
    def now_us(self) -> int:
        return self.process.host.now_us


class NeverBeginsAnew(SimulatedMember):
    """Defect: the member does not notice that the broker's clock was set back since the previous fetch.

    The member makes a new ``LogClock`` for each fetch. The new object knows neither the timestamp of the last record
    that was read, nor the time up to which the log was read.
    """

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self._offset = BrokerOffset()

    def log_clock(self, reader: LogReader) -> LogClock:
        return LogClock(self._offset)


class RewindsByHost(SimulatedMember):
    """Defect: the host's wall clock alone decides from which offset a gained partition is read."""

    def _find_starts(self, partitions: list[Partition], asked_us: int) -> None:
        since_ms = self.process.host.now_us // 1_000 - (self._reading.rewind_ms or 0)
        starts = {partition: self._broker.offset_for_time(partition, since_ms) for partition in partitions}
        self.process.fire(self._start_reading, starts, {}, {}, asked_us)


class RewindsTooLittle(SimulatedMember):
    """Defect: the member reads only about the last half second of a partition that it gains."""

    def rewind_to_ms(self, number: int, end_ms: int, rewind_ms: int) -> int:
        return end_ms - 500


class SleepsOn(SimulatedMember):
    """Defect: after ``core.step``, no timer is set for the core's next ``tick``."""

    def _step(self) -> None:
        self._stepping = False
        self.perform_all(self.core.step(self.now_us))
        if self.core.busy:
            self._step_soon()


class ForgetsCommits(SimulatedMember):
    """Defect: an offset is committed when its record is processed, although earlier records are not processed yet."""

    def done(self, position: tuple[str, int, int]) -> None:
        topic, number, offset = position
        for earlier in range(offset + 1):
            super().done((topic, number, earlier))


class IgnoresOpenSince(SimulatedMember):
    """Defect: a member that gains a partition ignores ``open_since`` of the partition's newest account.

    The member can then start to read after the beginning of a request that is still open.
    """

    def rewind_to_ms(self, number: int, end_ms: int, rewind_ms: int) -> int:
        progress = self._reading.progress
        log = [] if progress is None else self._broker.log((progress.name, number))
        return rewind_to_ms(end_ms, log[-1].timestamp_ms if log else 0, rewind_ms)


class OneClock(SimulatedMember):
    """Defect: the member treats the clocks of all broker nodes as one clock, although they differ."""

    def log_clock(self, reader: LogReader) -> LogClock:
        return self._clocks.clock(reader.partition, None, reader.since_us)
