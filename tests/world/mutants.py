"""``python -m tests.world.mutants``: measure how many seeds the simulator needs to find each deliberate defect.

A defect is also called a mutant. Each mutant replaces one class, or a setting, of the services or of the simulator.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from services.edge.delivery.session import DeliverySession
from services.simulator.plan import FAULT_KINDS, draw
from services.simulator.tree.edge import EdgeParts
from services.simulator.tree.units import WorldClasses
from services.simulator.world import World
from services.stream import Screen
from tests.world import core_defects as cores
from tests.world import edge_defects as edges
from tests.world import member_defects as members
from tests.world import screen_defects as screens
from tests.world import worker_defects as workers

FOUND = Path(__file__).with_name("found.json")
"""File with the results of the surveys of this version of the simulator."""

SEEDS = 2_000
"""Maximum number of seeds in a sample. A mutant that survives all of them was not found."""

ROUND = 20
"""Number of seeds that are tried with a mutant before it is the turn of the next mutant."""


@dataclass(frozen=True)
class Mutant:
    """One deliberate defect.

    Attributes:
        parts: The classes from which the simulation is built. They contain the defect.
        kinds: The kinds of fault in the simulation. They are chosen so that the defect has an effect.
    """

    name: str
    parts: WorldClasses
    kinds: tuple[str, ...] = FAULT_KINDS


def _edge(**parts) -> WorldClasses:
    return WorldClasses(edge=EdgeParts(**parts))


def _session(session: type[DeliverySession]) -> WorldClasses:
    return _edge(session=session)


def _screen(screen: type[Screen]) -> WorldClasses:
    return _session(screens.session_with(screen))


MUTANTS = (
    # The processor
    Mutant("safety drops kept partitions at a rebalance", WorldClasses(safety_member=members.DropsKept)),
    Mutant("the router drops kept partitions at a rebalance", WorldClasses(router_member=members.DropsKept)),
    Mutant(
        "the router ticks before it has read the log", WorldClasses(router_member=members.TicksUnread), ("gone", "slow")
    ),
    Mutant("the router reads too little of its past", WorldClasses(router_member=members.RewindsTooLittle)),
    Mutant("safety reads too little of its past", WorldClasses(safety_member=members.RewindsTooLittle)),
    Mutant(
        "the router's past begins by its host's clock",
        WorldClasses(router_member=members.RewindsByHost),
        ("clock", "kill", "restart"),
    ),
    Mutant("safety sleeps on after a step", WorldClasses(safety_member=members.SleepsOn), ("stray", "lazy", "clock")),
    Mutant("rails commit before the work is done", WorldClasses(rails_member=members.CommitsEarly)),
    Mutant("rails commit over what is still open", WorldClasses(rails_member=members.ForgetsCommits)),
    # Clocks
    Mutant("deadlines count from the writer's time of day", WorldClasses(router=cores.CountsFromAt)),
    Mutant("the router decides by its host's time of day", WorldClasses(router_member=members.DecidesByTimeOfDay)),
    Mutant(
        "a step of the broker's clock is not noticed",
        WorldClasses(router_member=members.NeverBeginsAnew),
        ("time", "late"),
    ),
    Mutant(
        "the clocks of all nodes of the broker are one", WorldClasses(router_member=members.OneClock), ("clock", "late")
    ),
    # A backlog
    Mutant(
        "the router ignores since when requests are open",
        WorldClasses(router_member=members.IgnoresOpenSince),
        ("kill", "restart", "join", "leave"),
    ),
    # Workers
    Mutant(
        "a worker remembers what it handed back",
        WorldClasses(scheduler=workers.RemembersHandedBack),
        ("join", "leave", "cut", "pause"),
    ),
    Mutant("a worker commits what waits", WorldClasses(worker_member=workers.CommitsWhatWaits)),
    Mutant(
        "a worker commits what it has only sent",
        WorldClasses(scheduler=workers.TrustsWhatIsSent),
        ("pause", "slow"),
    ),
    Mutant("a worker loses the slot of what it stopped", WorldClasses(scheduler=workers.LosesSlots)),
    Mutant("a worker begins batch requests first", WorldClasses(scheduler=workers.BatchFirst)),
    Mutant("a worker runs more than it has slots for", WorldClasses(scheduler=workers.RunsTooMuch)),
    # Cores
    Mutant(
        "rails forget what is pending when a partition is lost",
        WorldClasses(rails=cores.ForgetfulRails),
        ("cut", "verdict"),
    ),
    Mutant(
        "rails take a verdict for written that is only sent",
        WorldClasses(rails=cores.TrustingRails),
        ("cut", "slow", "outage"),
    ),
    Mutant(
        "rails keep what is pending when a partition is lost",
        WorldClasses(rails=cores.HoardingRails),
        ("cut", "verdict"),
    ),
    Mutant("safety drops what it held back", WorldClasses(safety=cores.LosesHeld)),
    Mutant("safety forgets before the router closes", WorldClasses(safety=cores.ForgetfulSafety)),
    Mutant("the router keeps the memory of a lost partition", WorldClasses(router=cores.LeakyRouter)),
    Mutant("the router tries a request again for ever", WorldClasses(router=cores.EndlessRouter)),
    Mutant("the router declares a stall too early", WorldClasses(router=cores.ImpatientRouter)),
    Mutant("the router takes a client for gone too early", WorldClasses(router=cores.HastyRouter)),
    Mutant(
        "the router counts one connection of a client",
        WorldClasses(router=cores.OneConnectionRouter),
        ("roam", "pause"),
    ),
    Mutant("the router ignores the policy's egress", WorldClasses(router=cores.CarelessRouter)),
    Mutant("the router believes a worker without governance", WorldClasses(router=cores.BelievingRouter)),
    # The fold
    Mutant("a fold shows withdrawn text again", _screen(screens.ShowsAgain)),
    Mutant("a fold shows text before the verdict", _screen(screens.IgnoresGate)),
    Mutant("a fold shows the answer to an unmasked prompt", _screen(screens.ShowsUnmasked)),
    Mutant("a fold shows text that is not cleared", _screen(screens.ShowsEverything)),
    Mutant("a fold believes every cutover", _screen(screens.BelievesCutovers)),
    Mutant("a fold believes every closing", _screen(screens.BelievesCloseds), ("stall", "late", "slow")),
    Mutant("a fold hears the last run of an attempt", _screen(screens.HearsTheLastRun)),
    Mutant("an edge believes a worker without governance", _screen(screens.BelievesWorkers)),
    # The edge
    Mutant("live streams stall when a home partition moves", _edge(plan=edges.IgnoresHolds)),
    Mutant(
        "an edge takes requests of a partition it does not follow",
        _edge(plan=edges.AsksTooSoon),
        ("join", "leave", "slow"),
    ),
    Mutant("an edge remembers what it did not follow", _edge(index=edges.RemembersGaps)),
    Mutant("a client is told too early that it is accepted", _edge(accepts_early=True), ("outage", "roam")),
    Mutant("a resumed stream shows text that was taken back", _session(edges.SendsRecalled)),
    Mutant("a history that was shortened twice is split", _session(edges.SplitsShortened), ("roam", "pause")),
    Mutant("a resumed stream begins anew", _session(edges.StartsOver)),
    Mutant("a resumed stream skips ops of the same record", _session(edges.SkipsOne), ("roam",)),
    Mutant("a recall does not stop the history", _edge(held=edges.SendsOn), ("roam", "pause")),
    Mutant("what comes during the history is lost", _edge(held=edges.ForgetsHeld)),
    # A newer version
    Mutant("an older edge skips a newer recall", _edge(takes_text_back=lambda _: False), ("upgrade", "roam")),
    Mutant("an older edge sends what a newer recall took back", _edge(sends_the_rest=True), ("upgrade", "roam")),
)


def found_after(mutant: Mutant, first_seed: int, seeds: int = SEEDS) -> tuple[int, str] | None:
    """Return how many seeds were needed to find a mutant, and which promise it broke; None if it was not found.

    ``first_seed`` is tried first. ``seeds`` is the maximum number of seeds.
    """
    for count in range(seeds):
        violation = World(draw(first_seed + count, mutant.kinds), mutant.parts).run().violation
        if violation is not None:
            return count + 1, violation.promise
        gc.collect()
    return None


Counts = dict[str, list[int]]
"""The results by mutant and sample. A positive number n means that the mutant was found by the n-th seed of the sample.
0 or a negative number -n means that it was not found by the first n seeds."""


def seed_that_finds(counts: Counts, name: str) -> int | None:
    return next((sample * SEEDS + count - 1 for sample, count in enumerate(counts.get(name, ())) if count > 0), None)


def known_counts() -> Counts:
    """Return the results that earlier calls of ``survey`` saved. A mutant without results has an empty list."""
    known: Counts = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    return {mutant.name: known.get(mutant.name, []) for mutant in MUTANTS}


def survey(counts: Counts, samples: int, seconds: float, named: str = "") -> None:
    """Measure how many seeds the simulator needs to find each mutant, and save the results.

    Continue where the last survey ended.

    Args:
        counts: The results so far. They are updated.
        samples: Number of samples of each mutant. Each sample begins at another seed.
        seconds: Maximum CPU time.
        named: Measure only mutants with this text in their names.
    """
    ends_s = time.process_time() + seconds
    left = [mutant for mutant in MUTANTS if named in mutant.name]
    while left:
        for mutant in tuple(left):
            sample = _next_sample(counts[mutant.name], samples)
            if sample is None:
                left.remove(mutant)
                continue
            if time.process_time() > ends_s:
                return
            _look_on(mutant, counts[mutant.name], sample)
            FOUND.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def _next_sample(counts: list[int], samples: int) -> int | None:
    """Return the number of the first sample in which the mutant was not found yet. The survey continues there.

    Return None if the mutant was found in all ``samples`` samples, or if it survived all ``SEEDS`` seeds of a sample.
    ``counts`` is the mutant's entry in ``Counts``.
    """
    at = next((sample for sample, count in enumerate(counts) if count <= 0), len(counts))
    survived = at < len(counts) and counts[at] <= -SEEDS
    return None if at >= samples or survived else at


def _look_on(mutant: Mutant, counts: list[int], sample: int) -> None:
    counts.extend([0] * (sample + 1 - len(counts)))
    tried = -counts[sample]
    found = found_after(mutant, sample * SEEDS + tried, min(ROUND, SEEDS - tried))
    counts[sample] = -tried - ROUND if found is None else tried + found[0]


def table(counts: Counts) -> Iterator[str]:
    """Yield one line of the printed table for each mutant, and then a line with the totals."""
    medians = []
    for name, samples in counts.items():
        if all(count > 0 for count in samples) and samples:
            medians.append(median_low(samples))
            yield f"{name:58} found after {' '.join(map(str, samples)):>14} seeds, median {medians[-1]:4}"
        else:
            said = " ".join(str(count) if count > 0 else f">{-count}" for count in samples)
            yield f"{name:58} found after {said:>14} seeds"
    middle = median_low(medians) if medians else "unknown"
    yield f"{len(medians)} of {len(counts)} mutants found in every sample; median of their medians {middle}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.mutants", description=__doc__)
    parser.add_argument(
        "--samples", type=int, default=3, help="samples of each mutant, each from another seed on (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=10_000, help="maximum CPU time; the next call continues")
    parser.add_argument("--named", default="", help="only mutants with this text in their names")
    parser.add_argument("--anew", action="store_true", help=f"the world has changed: forget what is in {FOUND.name}")
    options = parser.parse_args()
    gc.freeze()
    gc.disable()  # a run is short; what it leaves is collected between runs
    counts: Counts = {mutant.name: [] for mutant in MUTANTS} if options.anew else known_counts()
    survey(counts, options.samples, options.seconds, options.named)
    print(*table(counts), sep="\n")
    return int(any(seed_that_finds(counts, name) is None for name in counts))


if __name__ == "__main__":
    sys.exit(main())
