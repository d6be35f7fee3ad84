"""Defects that the simulation must find: each replaces one class of the product, or of the member around it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from schemas.requests import Request
from schemas.stream import Closed, Cutover, Recall, StreamEvent
from services.bus import LogClock, Received, UnreadableRecord
from services.processor import Effect, Write
from services.rails.core import RailsCore
from services.router.config import DeadlineRange, RouterConfig
from services.router.core import RouterCore
from services.safety.core import SafetyCore
from services.simulator.kafka.broker import LogReader
from services.simulator.kafka.member import Member
from services.simulator.plan import FAULT_KINDS, draw
from services.simulator.tree.units import Parts
from services.simulator.world import World
from services.stream import Screen

SEEDS = 2_000
"""How many seeds a mutant may survive."""


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        kinds: The faults that bring it out.
    """

    name: str
    parts: Parts
    kinds: tuple[str, ...] = FAULT_KINDS


class _DropsKept(Member):
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


class _TicksUnread(Member):
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


class _CommitsEarly(Member):
    """Commits a record when it was read."""

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        super()._on_fetched(reader, records)
        for record in records:
            self.done((record.topic, record.partition, record.offset))


class _ForgetfulRails(RailsCore):
    """Forgets what is pending of a lost partition, and remembers that it was evaluated."""

    def lost(self, number: int) -> None:
        for place in [place for place in self._pending if place.partition == number]:
            del self._pending[place]


class _HoardingRails(RailsCore):
    """Keeps what is pending of a lost partition, and never evaluates it again."""

    def lost(self, number: int) -> None:
        """Keep everything."""


class _LosesHeld(SafetyCore):
    """Drops what was held back while a partition caught up."""

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:
        if not self._partitions[number].queued:
            self._partitions[number]._held.clear()
        return super().caught_up(number, known_us, now_us)


class _LeakyRouter(RouterCore):
    """Keeps the memory for the prompts of a lost partition."""

    def lost(self, number: int) -> None:
        del self._partitions[number]
        del self._rejected[number]
        self._share()


class _EndlessRouter(RouterCore):
    """Forgets which attempts were retries."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        for partition in self._partitions.values():
            for state in partition.requests.values():
                state.retries.clear()
        return super().read(record, at_us, now_us)


class _ImpatientRouter(RouterCore):
    """Takes every pause of an answer for a stall after half of its time."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, stall=DeadlineRange(max_ms=150)), source, partitions)


class _ShowsAgain(Screen):
    """Shows what follows a recall that withdrew the answer."""

    def feed(self, event: StreamEvent, log_ms: int = 0):
        if self.stopped is not None and not isinstance(event, Recall | Closed):
            self.stopped, self.over, self.withdrawn = None, False, None
        return super().feed(event, log_ms)


class _BelievesCutovers(Screen):
    """Believes every cutover, whether or not its reason still holds."""

    def _cutover_holds(self, event: Cutover) -> bool:
        return event.attempt == self._voice_state.last_attempt + 1


class _BelievesCloseds(Screen):
    """Believes every ``Closed``."""

    def _close_holds(self, event: Closed) -> bool:
        return True


class _IgnoresGate(Screen):
    """Shows text before the verdict."""

    @property
    def gate_open(self) -> bool:
        return self.verdict is None or self.verdict.decision == "allow"


class _CountsFromAt(RouterCore):
    """Counts deadlines from the time of day that a request's writer names, or from the append if that is earlier."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Request):
            waited_ms = max(0, at_us - item.event.at) / 1_000
            item = item._replace(event=replace(item.event, waited_ms=waited_ms))
        return super().read(item, at_us, now_us)


class _DecidesByTimeOfDay(Member):
    """Measures by the host's time of day, which is stepped."""

    @property
    def now_us(self) -> int:
        return self.process.host.now_us


class _NeverBeginsAnew(Member):
    """Takes the least difference between clocks as the offset, whatever the order of the log and its answers say."""

    def log_clock(self, reader: LogReader) -> LogClock:
        return LogClock(self._broker_offset)


_BelievesCutovers._RULES = {**Screen._RULES}
_BelievesCloseds._RULES = {**Screen._RULES}

MUTANTS = (
    Mutant("safety drops kept partitions at a rebalance", Parts(safety_member=_DropsKept)),
    Mutant("the router drops kept partitions at a rebalance", Parts(router_member=_DropsKept)),
    Mutant("the router ticks before it has read the log", Parts(router_member=_TicksUnread), ("slow", "gone", "pause")),
    Mutant("rails forget what is pending when a partition is lost", Parts(rails=_ForgetfulRails)),
    Mutant("rails keep what is pending when a partition is lost", Parts(rails=_HoardingRails)),
    Mutant("rails commit before the work is done", Parts(rails_member=_CommitsEarly)),
    Mutant("safety drops what it held back", Parts(safety=_LosesHeld)),
    Mutant("the router keeps the memory of a lost partition", Parts(router=_LeakyRouter)),
    Mutant("the router tries a request again for ever", Parts(router=_EndlessRouter)),
    Mutant("the router declares a stall too early", Parts(router=_ImpatientRouter)),
    Mutant("a fold shows withdrawn text again", Parts(screen=_ShowsAgain)),
    Mutant("a fold shows text before the verdict", Parts(screen=_IgnoresGate)),
    Mutant("a fold believes every cutover", Parts(screen=_BelievesCutovers)),
    Mutant("a fold believes every closing", Parts(screen=_BelievesCloseds)),
    Mutant("deadlines count from the writer's time of day", Parts(router=_CountsFromAt), ("clock", "slow")),
    Mutant("the router decides by its host's time of day", Parts(router_member=_DecidesByTimeOfDay), ("clock", "late")),
    Mutant("a step of the broker's clock is not noticed", Parts(router_member=_NeverBeginsAnew), ("time", "late")),
)


def found_after(mutant: Mutant, first_seed: int, seeds: int = SEEDS) -> tuple[int, str] | None:
    """Return how many seeds it took to find a mutant, and by which promise; None if it survived."""
    for count in range(seeds):
        violation = World(draw(first_seed + count, mutant.kinds), mutant.parts).run().violation
        if violation is not None:
            return count + 1, violation.promise
    return None


def survey(first_seed: int, samples: int, seeds: int, tell: Callable[[str], None]) -> bool:
    """Look for every mutant several times from different seeds, and tell the medians. Return whether all were found."""
    all_found = True
    for mutant in MUTANTS:
        counts, promises = [], dict[str, int]()
        for sample in range(samples):
            found = found_after(mutant, first_seed + sample * seeds, seeds)
            counts.append(seeds + 1 if found is None else found[0])
            if found is not None:
                promises[found[1]] = promises.get(found[1], 0) + 1
        median = sorted(counts)[len(counts) // 2]
        all_found &= median <= seeds
        said = ", ".join(sorted(promises)) or "never found"
        tell(f"{mutant.name:56} median {median:5} seeds, most {max(counts):5}  {said}")
    return all_found
