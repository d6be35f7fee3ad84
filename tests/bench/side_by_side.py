"""``bus_hop`` of this checkout against that of another one, in turns: A B B A, so that a slow machine slows both.

    python -m tests.bench.side_by_side OTHER [--turns 1]

Both run with this interpreter and its packages. Of every figure that the bench prints: the other's mean, ours, and the
ratio ours / other; below 1 is less time or more events a second. Whole trees are compared by ``alternating``.
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
"""Figures of which more is better."""


def run(tree: Path) -> dict[str, dict[str, float]]:
    """Row -> figure -> value, as the bench printed them."""
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
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.side_by_side", description=__doc__)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("--turns", type=int, default=1, help="how often A B B A (%(default)s)")
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
