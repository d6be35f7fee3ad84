"""This checkout against another one, in turns: A B B A, so that a machine that slows down slows both.

    python -m tests.bench.side_by_side OTHER [--turns 1] [--what bus_hop added_ttft governed]

Both run with this interpreter and its packages. ``added_ttft`` and ``governed`` are this checkout's bench and load kit,
which start the services of the one and of the other; ``bus_hop`` is each one's own. Of every figure that a bench
prints: the other's mean, ours, and the ratio ours / other; below 1 is less time or more chunks a second.
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

HEADS = ("direct_p50", "direct_p99", "added_p50", "added_p99", "chunks_per_s", "cpu_ms_per_stream", "rss_mb", "others")
RATES = {"chunks_per_s", "per_s"}
"""Figures of which more is better."""


WHAT = ("bus_hop", "added_ttft", "governed")


def run(what: str, tree: Path) -> dict[str, dict[str, float]]:
    """Row -> figure -> value, as the bench printed them."""
    home, command = tree, ["tests.bench.bus_hop"]
    if what != "bus_hop":
        home, command = ROOT, ["tests.bench.added_ttft", "--rounds", "1", "--checkout", str(tree)]
    command += ["--governed"] if what == "governed" else []
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=home, env=os.environ | {"PYTHONPATH": str(home)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    rows = (row for line in done.stdout.splitlines() if (row := parsed(line)) is not None)
    return dict(rows)


def parsed(line: str) -> tuple[str, dict[str, float]] | None:
    """A JSON object of ``bus_hop``, or a row of the table of ``added_ttft``."""
    if line.startswith("{"):
        figures = json.loads(line)
        name = f"{figures.pop('broker')} {figures.pop('load')}"
        values = {key: fmean(value) if isinstance(value, list) else value for key, value in figures.items()}
        return name, {key: float(value) for key, value in values.items() if value is not None and key != "missing"}
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if not cells[0].isdigit():
        return None
    numbers = [float(part.replace(",", "")) for cell in cells[1:] for part in cell.split("/")]
    return f"{cells[0]} streams", dict(zip(HEADS, numbers, strict=True))


def main() -> None:
    """Print one table a bench."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.side_by_side", description=__doc__)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("--turns", type=int, default=1, help="how often A B B A (%(default)s)")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT)
    options = parser.parse_args()
    for what in options.what:
        found: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for index, tree in enumerate([options.other.resolve(), ROOT, ROOT, options.other.resolve()] * options.turns):
            print(f"{what}, run {index + 1}: {'ours' if tree == ROOT else 'the other'}", file=sys.stderr, flush=True)
            for row, figures in run(what, tree).items():
                for name, value in figures.items():
                    found[row, name][tree == ROOT].append(value)
        print(f"\n{what}\n| row | figure | other | ours | ratio |\n|---|---|---|---|---|")
        for (row, name), (other, ours) in found.items():
            ratio = fmean(ours) / fmean(other) if fmean(other) else float("nan")
            ratio = 1 / ratio if name in RATES and ratio else ratio
            print(f"| {row} | {name} | {fmean(other):.2f} | {fmean(ours):.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
