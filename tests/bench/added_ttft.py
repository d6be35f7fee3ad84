"""Measure what Railbus costs in comparison with direct requests to the model server: time to first token, CPU, memory.

    python -m tests.bench.added_ttft [--streams 1,16,64] [--rounds 3] [--prompts same] [--governed]

Through Railbus, a request passes the edge, the bus, the generator, the router and the broker. The model server and the
closed-loop client are in ``tests/bench/kit``. The model server answers on a fixed schedule. Direct runs alternate with
runs through Railbus.

CPU and memory are those of all processes of ``railbus up``, including the broker and the supervisor. ``others`` is the
number of cores that programs other than this benchmark used during the run. Discard figures from a busy machine.

All prompts are the same unless ``--prompts distinct`` is given. Rails check the same prompt only once, and then use the
cached result.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.bench.kit.servers import load, upstream, wait_for

ROOT = Path(__file__).resolve().parents[2]
MODEL = "fake-A-t30-g20-n50"
REQUESTS_PER_STREAM = {1: 16, 16: 8, 64: 4}
_seeds = count(1)  # seeds of the prompts: with distinct prompts, no two runs ask the same


def client(url: str, streams: int, prompts: str, *options: str) -> dict[str, Any]:
    """Run the closed-loop client once and return its figures. Exit if a stream failed or had a wrong text."""
    requests = streams * REQUESTS_PER_STREAM.get(streams, 4)
    command = ["--model", MODEL, "--streams", str(streams), "--requests", str(requests), "--prompts", prompts]
    figures = load(url, *command, "--seed", str(next(_seeds)), *options)
    if figures["errors"] or figures["wrong_text"]:
        sys.exit(f"streams failed: {figures['errors']}, {figures['wrong_text']} with another text")
    return figures


def table(rows: list[dict[str, Any]]) -> None:
    """Print one row for each number of streams. The figures are medians over the rounds."""
    print("| streams | direct TTFT p50 / p99 ms | added p50 / p99 ms | chunks/s | CPU ms/stream | RSS MiB | others |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['streams']} | {row['direct_p50']:.1f} / {row['direct_p99']:.1f} "
            f"| {row['added_p50']:.1f} / {row['added_p99']:.1f} | {row['chunks_per_s']:.0f} "
            f"| {row['cpu_ms_per_stream']:.1f} | {row['rss_mib']:.0f} | {row['others']:.2f} |",
            flush=True,
        )


def measure(streams: int, rounds: int, prompts: str, urls: tuple[str, str], trees: list[str]) -> dict[str, Any]:
    """Send requests to the model server directly and through Railbus, in turn. Return the medians over the rounds.

    Args:
        streams: Number of requests under way at once.
        rounds: Number of direct runs, and also of runs through Railbus.
        prompts: ``same`` or ``distinct``.
        urls: Addresses of the model server and of Railbus.
        trees: The client's options ``--tree``. They name the processes whose CPU time and memory the client measures.
    """
    direct, ours = [], []
    for _ in range(rounds):
        direct.append(client(urls[0], streams, prompts))
        ours.append(client(urls[1], streams, prompts, *trees))

    def median(runs: list[dict[str, Any]], *path: str) -> float:
        values: list[Any] = runs
        for name in path:
            values = [value[name] for value in values]
        return statistics.median(values)

    row = {"streams": streams, "direct_p50": median(direct, "ttft_ms", "p50")}
    row |= {"direct_p99": median(direct, "ttft_ms", "p99"), "chunks_per_s": median(ours, "chunks_per_s")}
    row |= {"cpu_ms_per_stream": median(ours, "trees", "railbus", "cpu_ms_per_answer")}
    row |= {"rss_mib": median(ours, "trees", "railbus", "rss_mib"), "others": median(ours, "others_cores")}
    row["added_p50"] = median(ours, "ttft_ms", "p50") - row["direct_p50"]
    row["added_p99"] = median(ours, "ttft_ms", "p99") - row["direct_p99"]
    return row


@contextmanager
def railbus_up(
    checkout: Path, port: int, *options: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Within the ``with`` block, run the ``railbus up`` of a checkout. Yield its process."""
    with tempfile.TemporaryDirectory(prefix="railbus-bench-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "services.cli", "up", "--port", str(port), "--data-dir", folder, *options]
        environment = os.environ | {"PYTHONPATH": str(checkout)} | (environment or {})
        tree = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=checkout, env=environment)
        try:
            wait_for(f"http://127.0.0.1:{port}/readyz", tree)
            yield tree
        finally:
            tree.terminate()
            try:
                tree.wait(20)
            except subprocess.TimeoutExpired:
                tree.kill()
                tree.wait()


def main() -> None:
    """Start the model server and Railbus, measure, and stop both."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.added_ttft", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", choices=("same", "distinct"), default="same")
    parser.add_argument("--governed", action="store_true", help="run with rails and safety")
    parser.add_argument("--option", action="append", default=[], help="further option of `railbus up`; repeatable")
    parser.add_argument("--port", type=int, default=18080, help="port of the edge (default: %(default)s)")
    parser.add_argument(
        "--checkout", type=Path, default=ROOT, help="checkout whose services are started (default: this one)"
    )
    given = parser.parse_args()
    governed = "--governed" if given.governed else "--no-governed"
    with upstream() as server:
        options = ("--engine", "openai", "--upstream-url", server.url, *given.option, governed)
        with railbus_up(given.checkout.resolve(), given.port, *options) as tree:
            urls = (server.url, f"http://127.0.0.1:{given.port}")
            trees = ["--tree", f"railbus={tree.pid}", "--tree", f"upstream={server.process.pid}"]
            counts = [int(streams) for streams in given.streams.split(",")]
            table([measure(streams, given.rounds, given.prompts, urls, trees) for streams in counts])


if __name__ == "__main__":
    main()
