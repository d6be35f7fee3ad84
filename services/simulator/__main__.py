"""``python -m services.simulator``: runs of the simulated tree; ``railbus simulate`` starts it."""

import argparse
import gc
import hashlib
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from services.runtime.process import EXIT_USER
from services.simulator.plan import FAULT_KINDS, draw
from services.simulator.shrink import shrink
from services.simulator.timeline import draw_timeline
from services.simulator.world import Result, World

NUMBERS: Final = "--runs must be 1 or more, and --seed 0 or more"

MOST_TOLD: Final = 20
"""Most failing seeds that are told one by one."""


@dataclass
class Summary:
    """What many runs came to."""

    results: list[Result] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def broken(self) -> list[Result]:
        return [each for each in self.results if each.violation is not None]

    def __str__(self) -> str:
        results, runs = self.results, max(len(self.results), 1)
        whole = hashlib.blake2b("".join(each.digest for each in results).encode(), digest_size=8).hexdigest()
        requests, faults = sum(each.requests for each in results), sum(each.faults for each in results)
        return (
            f"{len(results)} runs, {requests} requests ({requests / runs:.1f} a run,"
            f" {sum(each.healthy for each in results)} judged healthy), {faults} faults ({faults / runs:.1f} a run),"
            f" {sum(each.rebalances for each in results)} rebalances, {sum(each.records for each in results)} records,"
            f" {sum(each.events for each in results)} events, {len(results) / max(self.cpu_s, 1e-9):.1f} runs/s of CPU,"
            f" {len(self.broken)} violations, schedule {whole}"
        )


def main() -> int:
    """Return 0, 1 after a violation, or 2 for a user's mistake."""
    options = _arguments()
    kinds = fault_kinds(options.faults)
    unknown = [kind for kind in kinds if kind not in FAULT_KINDS]
    if unknown or options.runs < 1 or options.seed < 0:
        named = f"--faults names {', '.join(unknown)}; there are {', '.join(FAULT_KINDS)}" if unknown else NUMBERS
        sys.stderr.write(f"railbus simulate: {named}\n")
        return EXIT_USER
    summary = simulate(range(options.seed, options.seed + options.runs), kinds, options.seconds)
    sys.stdout.write(f"{summary}\n")
    if summary.broken:
        sys.stdout.write(f"\n{explain(summary.broken[0], kinds)}\n")
    return int(bool(summary.broken))


def fault_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of fault in a list with commas; all of them for an empty one."""
    return tuple(text.split(",")) if text else FAULT_KINDS


def simulate(seeds: range, kinds: tuple[str, ...] = FAULT_KINDS, seconds: float = 0.0) -> Summary:
    """Run each seed, for so many seconds of CPU at most; tell those that break a promise as they do."""
    summary, began_s = Summary(), time.process_time()
    gc.freeze()
    gc.disable()  # a run is short; what it leaves is collected while it is still in the processor's cache
    for seed in seeds:
        summary.results.append(result := World(draw(seed, kinds)).run())
        gc.collect()
        if result.violation is not None and len(summary.broken) <= MOST_TOLD:
            sys.stdout.write(f"seed {seed}: {result.violation}\n")
            sys.stdout.flush()
        summary.cpu_s = time.process_time() - began_s
        if 0 < seconds < summary.cpu_s:
            break
    gc.enable()
    return summary


def explain(result: Result, kinds: tuple[str, ...] = FAULT_KINDS) -> str:
    """Shrink a failing run to its fewest faults, and draw it."""
    if result.violation is None:
        return f"seed {result.seed} breaks no promise"
    plan = shrink(draw(result.seed, kinds), result.violation.promise)
    again = World(plan, trace=True).run()
    lines = [
        f"seed {result.seed}: {again.violation}",
        f"{len(plan.faults)} of {result.faults} faults are needed:",
        *map(str, plan.faults),
        draw_timeline(again.lines or [], str(again.violation)),
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="railbus simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds of CPU; 0 for never")
    parser.add_argument("--faults", default="", help="only these kinds of fault, separated by commas")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
