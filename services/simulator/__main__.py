"""Run all services in virtual time, with injected faults, and check properties that must hold in every run."""

import argparse
import sys
from typing import Final

from services.runtime.process import EXIT_USER
from services.simulator.plan import FAULT_KINDS
from services.simulator.runs import explain, simulate

MOST_RUNS: Final = 10**9

MOST_WORKERS: Final = 64

NUMBERS: Final = f"--runs must be 1 to {MOST_RUNS}, --seed 0 or more, and --workers 1 to {MOST_WORKERS}"


def main() -> int:
    options = _arguments()
    kinds = fault_kinds(options.faults)
    unknown = [kind for kind in kinds if kind not in FAULT_KINDS]
    if unknown or not 1 <= options.runs <= MOST_RUNS or options.seed < 0 or not 1 <= options.workers <= MOST_WORKERS:
        named = f"--faults names {', '.join(unknown)}; there are {', '.join(FAULT_KINDS)}" if unknown else NUMBERS
        sys.stderr.write(f"railbus simulate: {named}\n")
        return EXIT_USER
    seeds = range(options.seed, options.seed + options.runs)
    summary = simulate(seeds, kinds, options.seconds, options.workers)
    sys.stdout.write(f"{summary}\n")
    if summary.broken:
        sys.stdout.write(f"\n{explain(summary.broken[0], kinds)}\n")
    return int(bool(summary.broken))


def fault_kinds(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of fault kinds. An empty string means all kinds."""
    return tuple(text.split(",")) if text else FAULT_KINDS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="railbus simulate", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=0, help="first seed; a seed always gives the same run (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="number of runs, each with the next seed (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="stop after this CPU time of all processes together, in seconds (default: 0, never)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of processes that run seeds in parallel (default: %(default)s)"
    )
    parser.add_argument("--faults", default="", help="only faults of these kinds, separated by commas (default: all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
