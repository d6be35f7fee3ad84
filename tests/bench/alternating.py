"""Compare this checkout with another one: both run at the same time, and bursts of requests go to them in turn.

    python -m tests.bench.alternating OTHER [--streams 1,16,64] [--pairs 16] [--starts 2] [--governed]
        [--ours=--no-ledger]

Each pair has one burst for each checkout. The order is A B B A: the checkout that was second goes first in the next
pair. A machine's fast and slow phases last minutes, but the two bursts of a pair are only seconds apart. While one
checkout is measured, the other is idle and uses less than a tenth of a core. The figure ``others' cores`` is the number
of cores used by all processes, including the idle checkout, but without the measured checkout and the client. Both
checkouts are started ``--starts`` times.

``--streams`` lists the numbers of concurrent streams. After each start, each of these numbers is measured with
``--pairs`` pairs. ``--governed`` runs both checkouts with rails and safety. ``--ours`` passes an option to this
checkout's ``railbus up``, and ``--theirs`` to the other one's.

For each figure, the table has its mean over all pairs, for the other checkout and for this one (``ours``). It also has
the median of the ratio ours / other, with a 95 % confidence interval. The interval comes from order statistics, so it
assumes nothing about the distribution. A ratio below 1 means that this checkout has the smaller figure.
"""

import argparse
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from tests.bench.added_ttft import ROOT, client, railbus_up
from tests.bench.kit.servers import upstream

WARM_BURSTS: Final = 2
PORTS: Final = (18080, 18180)

Pair = tuple[dict[str, float], dict[str, float]]
"""Figures of the two bursts of a pair: first those of the other checkout, then those of this one."""


def figures(burst: dict[str, Any]) -> dict[str, float]:
    tree = burst["trees"]["tree"]
    return {
        "CPU ms an answer": tree["cpu_ms_per_answer"],
        "TTFT p50 ms": burst["ttft_ms"]["p50"],
        "TTFT p99 ms": burst["ttft_ms"]["p99"],
        "chunks a second": burst["chunks_per_s"],
        "others' cores": burst["others_cores"],
    }


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median. Its ends are two of the values, as close together as possible.

    Fewer than six values give no such interval. In this case, return the smallest and the largest value.
    """
    values, count = sorted(values), len(values)
    outside, low = 0.0, 0
    while low < (count - 1) // 2 and (outside := outside + 2 * comb(count, low) / 2**count) <= 0.05:
        low += 1
    low = max(low - 1, 0)
    return values[low], values[-1 - low]


def pairs_of(
    checkouts: tuple[Path, Path], options: tuple[list[str], list[str]], streams: list[int], pairs: int
) -> dict[int, list[Pair]]:
    """Start both checkouts, and send bursts of requests to them in turn. Return pairs of results by number of streams.

    A pair has the figures of one burst for each checkout.

    Args:
        checkouts: The other checkout and this one.
        options: More options of ``railbus up``, for each checkout.
        streams: Numbers of streams to measure.
        pairs: Number of pairs for each number of streams.
    """
    found: dict[int, list[Pair]] = {}
    with upstream() as server:
        common = ("--engine", "openai", "--upstream-url", server.url)
        with (
            railbus_up(checkouts[0], PORTS[0], *common, *options[0]) as theirs,
            railbus_up(checkouts[1], PORTS[1], *common, *options[1]) as ours,
        ):
            trees = (theirs.pid, ours.pid)

            def burst(which: int, count: int) -> dict[str, float]:
                url = f"http://127.0.0.1:{PORTS[which]}"
                return figures(client(url, count, "same", "--tree", f"tree={trees[which]}"))

            for count in streams:
                for which in (0, 1) * WARM_BURSTS:
                    burst(which, count)
                for number in range(pairs):
                    first = number % 2
                    two = {which: burst(which, count) for which in (first, 1 - first)}
                    found.setdefault(count, []).append((two[0], two[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.alternating", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("other", type=Path, help="path of the other checkout")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--pairs", type=int, default=16, help="pairs of bursts after each start (default: %(default)s)")
    parser.add_argument(
        "--starts", type=int, default=2, help="number of times that both checkouts are started (default: %(default)s)"
    )
    parser.add_argument("--governed", action="store_true", help="run with rails and safety")
    parser.add_argument(
        "--theirs", action="append", default=[], help="option of the other checkout's `railbus up`; repeatable"
    )
    parser.add_argument(
        "--ours", action="append", default=[], help="option of this checkout's `railbus up`; repeatable"
    )
    given = parser.parse_args()
    streams = [int(count) for count in given.streams.split(",")]
    governed = "--governed" if given.governed else "--no-governed"
    options = ([governed, *given.theirs], [governed, *given.ours])
    all_pairs: dict[int, list[Pair]] = {count: [] for count in streams}
    for _ in range(given.starts):
        found = pairs_of((given.other.resolve(), ROOT), options, streams, given.pairs)
        for count, more in found.items():
            all_pairs[count] += more
    for count, pairs in all_pairs.items():
        print(f"\n{count} streams, {len(pairs)} pairs\n\n| figure | other | ours | ours / other, median (95 %) |")
        print("|---|---|---|---|")
        for name in pairs[0][0]:
            ratios = [ours[name] / theirs[name] for theirs, ours in pairs if theirs[name]]
            ratio = "-"
            if ratios:
                low, high = median_interval(ratios)
                ratio = f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"
            means = (fmean(theirs[name] for theirs, _ in pairs), fmean(ours[name] for _, ours in pairs))
            print(f"| {name} | {means[0]:.2f} | {means[1]:.2f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
