"""Measure whether the first tokens of answers come earlier if router and safety have a lower CPU priority.

    python -m tests.bench.niceness [--rounds 6] [--streams 64]

The load is 64 streams with rails and safety. One ``railbus up`` runs during all rounds. Each round measures three
cases: router and safety have a niceness of 0, the router has 10 and safety 0, or both have 10. Before each case, the
benchmark sets the niceness of both services. To lower a niceness, it needs the capability ``CAP_SYS_NICE``.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import psutil

from tests.bench.added_ttft import client
from tests.bench.kit.servers import upstream
from tests.support.tree import running_tree

ARMS = {"nobody": (), "the router": ("router",), "router and safety": ("router", "safety")}
NICE = 10


def give(tree, nice):
    """Set the niceness of all processes of router and safety: 10 for the services in ``nice``, 0 for the others."""
    for service in ("router", "safety"):
        process = psutil.Process(tree.pid(service))
        for each in (process, *process.children(recursive=True)):
            each.nice(NICE if service in nice else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=64)
    given = parser.parse_args()
    found = {name: [] for name in ARMS}
    with upstream() as server, tempfile.TemporaryDirectory() as folder:
        options = ("--engine", "openai", "--upstream-url", server.url)
        with running_tree(Path(folder), *options, governed=True) as tree:
            client(tree.url, given.streams, "same")
            for turn in range(given.rounds):
                direct = client(server.url, given.streams, "same")["ttft_ms"]["p50"]
                for name in list(ARMS)[:: -1 if turn % 2 else 1]:
                    try:
                        give(tree, ARMS[name])
                    except psutil.AccessDenied:
                        sys.exit(
                            "cannot lower the niceness here: run the benchmark with CAP_SYS_NICE, for example as root"
                        )
                    found[name].append(client(tree.url, given.streams, "same")["ttft_ms"]["p50"] - direct)
    print("| nice | added TTFT p50, ms: median of the rounds | least | most |\n|---|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")


if __name__ == "__main__":
    main()
