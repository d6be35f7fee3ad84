"""Run the benchmark ``bus_hop`` in this checkout and in another one, and compare the figures.

    python -m tests.bench.side_by_side OTHER [--turns 1]

The runs are in the order A B B A, so that a slow phase of the machine affects both checkouts. A is the other checkout,
and B is this one. Both run with this interpreter and its packages. For each figure, the output has the mean of the
other checkout, the mean of this one, and the ratio this / other. For rates, the ratio is inverted. Therefore a ratio
below 1 always means that this checkout is better. To compare whole systems of two checkouts instead of only the bus,
use ``tests.bench.alternating``.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]

RATES = {"per_s"}
"""Names of the figures for which a higher value is better."""


def run(tree: Path) -> dict[str, dict[str, float]]:
    """Run ``bus_hop`` in a checkout. Return a dictionary from the name of each row to the figures of that row."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bus_hop"], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return dict(parsed(line) for line in done.stdout.splitlines() if line.startswith("{"))


def parsed(line: str) -> tuple[str, dict[str, float]]:
    figures = json.loads(line)
    name = f"{figures.pop('broker')} {figures.pop('load')}"
    values = {key: fmean(value) if isinstance(value, list) else value for key, value in figures.items()}
    return name, {key: float(value) for key, value in values.items() if value is not None and key != "missing"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.side_by_side", description=__doc__)
    parser.add_argument("other", type=Path, help="path of the other checkout")
    parser.add_argument(
        "--turns", type=int, default=1, help="number of turns, each in the order A B B A (default: %(default)s)"
    )
    options = parser.parse_args()
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for index, tree in enumerate([options.other.resolve(), ROOT, ROOT, options.other.resolve()] * options.turns):
        print(f"run {index + 1}: {'ours' if tree == ROOT else 'the other'}", file=sys.stderr, flush=True)
        for row, figures in run(tree).items():
            for name, value in figures.items():
                found[row, name][tree == ROOT].append(value)
    print("\n| row | figure | other | ours | ratio |\n|---|---|---|---|---|")
    for (row, name), (other, ours) in found.items():
        ratio = fmean(ours) / fmean(other) if fmean(other) else float("nan")
        ratio = 1 / ratio if name in RATES and ratio else ratio
        print(f"| {row} | {name} | {fmean(other):.2f} | {fmean(ours):.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
