"""Defects of the shell around a core: membership, reading, deciding, commits."""

from services.bus import BrokerOffset, LogClock, Received
from services.bus.groups.rewind import rewind_to_ms
from services.bus.records import Partition
from services.simulator.kafka.broker import LogReader
from services.simulator.kafka.member import SimulatedMember


class DropsKept(SimulatedMember):
    """Forgets the state of kept partitions at a rebalance, and reads on where it was."""

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
    """Lets the core decide by the clock without reading the log first."""

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
    """Commits a record when it was read."""

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        super()._on_fetched(reader, records)
        for record in records:
            self.done((record.topic, record.partition, record.offset))


class DecidesByTimeOfDay(SimulatedMember):
    """Measures by the host's wall clock, which is stepped."""

    @property
    def now_us(self) -> int:
        return self.process.host.now_us


class NeverBeginsAnew(SimulatedMember):
    """Takes the least difference between clocks as the offset, whatever the order of the log and its answers say."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self._offset = BrokerOffset()

    def log_clock(self, reader: LogReader) -> LogClock:
        return LogClock(self._offset)


class RewindsByHost(SimulatedMember):
    """Reads a gained partition from a window before the time of its host's wall clock."""

    def _find_starts(self, partitions: list[Partition], asked_us: int) -> None:
        since_ms = self.process.host.now_us // 1_000 - (self._reading.rewind_ms or 0)
        starts = {partition: self._broker.offset_for_time(partition, since_ms) for partition in partitions}
        self.process.fire(self._start_reading, starts, {}, {}, asked_us)


class RewindsTooLittle(SimulatedMember):
    """Reads a gained partition from half a second before its newest record."""

    def rewind_to_ms(self, number: int, end_ms: int, rewind_ms: int) -> int:
        return end_ms - 500


class SleepsOn(SimulatedMember):
    """Never sets an alarm that a step has brought about."""

    def _step(self) -> None:
        self._stepping = False
        self.perform_all(self.core.step(self.now_us))
        if self.core.busy:
            self._step_soon()


class ForgetsCommits(SimulatedMember):
    """Commits the newest record that is done, whatever is still open before it."""

    def done(self, position: tuple[str, int, int]) -> None:
        topic, number, offset = position
        for earlier in range(offset + 1):
            super().done((topic, number, earlier))


class IgnoresOpenSince(SimulatedMember):
    """Reads a gained partition from a window before its newest account, whatever the account says is open."""

    def rewind_to_ms(self, number: int, end_ms: int, rewind_ms: int) -> int:
        progress = self._reading.progress
        log = [] if progress is None else self._broker.log((progress.name, number))
        return rewind_to_ms(end_ms, log[-1].timestamp_ms if log else 0, rewind_ms)


class OneClock(SimulatedMember):
    """Takes the clocks of all nodes of the broker for one."""

    def log_clock(self, reader: LogReader) -> LogClock:
        return self._clocks.clock(reader.partition, None, reader.since_us)
