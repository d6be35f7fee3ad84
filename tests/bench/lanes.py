"""Measure how much a batch job that keeps the engine full delays the first token of interactive requests.

    python -m tests.bench.lanes [--seconds 60] [--rate 4] [--window 300]

One ``railbus up`` runs the simulated engine, and rails and safety with the default policy. Interactive requests arrive
as a Poisson process (open loop). They run alone (A), or beside a job that keeps every batch slot of the engine busy
(B). The order of the runs is A B B A. The requirement is that the job makes the p99 of the time to first token at most
1.3 times as long. Exit code 1 means that the p99 is longer, or that a request failed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.batch_load import FINE
from tests.bench.kit.figures import percentile
from tests.support.tree import running_tree

BAR = 1.3
ARMS = "ABBA"
DRAIN_S = 60.0
REFUSED = "content_filter"
"""Error of a denied prompt, which is no failure: the default policy denies one in thirty of the test prompts."""


def interactive(url: str, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Send interactive requests for ``seconds``, at ``rate`` requests per second.

    Return the figures of the load client, including the times of every answer.
    """
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.bench.kit", "load", "--url", url, "--model", "simulated-n20",
            "--rate", str(rate), "--requests", str(round(rate * seconds)),
            "--warmup", "8", "--seed", str(seed), "--answers",
        ],
        stdout=subprocess.PIPE, text=True, check=False, timeout=seconds + 180,
    )  # fmt: skip
    return json.loads(done.stdout)


def batch(kafka: str, window: int, tokens: int) -> subprocess.Popen[str]:
    """Start a batch job with so many requests that it does not end by itself."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.bench.batch_load", "--kafka", kafka, "--requests", "1000000",
            "--window", str(window), "--tokens", str(tokens),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def begin(job: subprocess.Popen[str], closed: int) -> None:
    """Read the job's progress from its stderr until at least ``closed`` requests are closed."""
    assert job.stderr is not None
    for line in job.stderr:
        if line.startswith("{") and json.loads(line)["closed"] >= closed:
            break
    else:
        raise RuntimeError("the job ended before it had begun")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    arms: dict[str, list[float]] = {"A": [], "B": []}
    runs: list[tuple[str, float, float, float]] = []
    failed, jobs = 0, []
    settings = {"RAILBUS_SIM_BATCH": str(options.slots), "RAILBUS_SIM_TIME_SCALE": str(options.scale)}
    with tempfile.TemporaryDirectory() as folder, running_tree(
        Path(folder), "--engine", "simulated", governed=True, **settings
    ) as tree:  # fmt: skip
        warm = interactive(tree.url, options.rate, 10, 99)
        say(f"warm-up: {warm['ok']} of {warm['requests']}, {warm['errors']}")
        for number, arm in enumerate(ARMS):
            job = None
            if arm == "B":
                job = batch(tree.kafka, options.window, options.tokens)
                begin(job, 2 * options.slots)
            figures = interactive(tree.url, options.rate, options.seconds, number)
            if job is not None:
                job.terminate()
                said, _ = job.communicate(timeout=DRAIN_S + 60)
                jobs.append(json.loads(said))
            first = [answer["arrivals_ms"][0] for answer in figures["answers"] if not answer["error"]]
            refused = sum(count for error, count in figures["errors"].items() if REFUSED in error)
            failed += figures["requests"] - figures["ok"] - refused
            arms[arm] += first
            runs.append((arm, *(percentile(first, share) for share in (0.5, 0.95, 0.99))))
            shown = " / ".join(f"{ms:.1f}" for ms in runs[-1][1:])
            say(f"{arm}: p50 / p95 / p99 {shown} ms {figures['errors']}")
            time.sleep(2)
    say("| arm | requests | first token p50 / p95 / p99 ms |\n|---|---|---|")
    for arm, values in arms.items():
        p50, p95, p99 = (percentile(values, share) for share in (0.5, 0.95, 0.99))
        say(f"| {'alone' if arm == 'A' else 'beside the job'} | {len(values)} | {p50:.1f} / {p95:.1f} / {p99:.1f} |")
    ratios = [percentile(arms["B"], share) / percentile(arms["A"], share) for share in (0.5, 0.95, 0.99)]
    say(f"ratio p50 / p95 / p99: {' / '.join(f'{ratio:.2f}' for ratio in ratios)} (bar: p99 <= {BAR})")
    rate = statistics.mean(job["answers_per_s"] for job in jobs)
    outcomes = [job["outcomes"] for job in jobs]
    say(f"the job: {rate:.1f} answers/s, outcomes {outcomes}; interactive not answered: {failed}")
    return int(ratios[-1] > BAR or failed > 0 or any(not set(job["outcomes"]) <= FINE for job in jobs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lanes", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60, help="duration of each of the four runs, in seconds (default: 60)"
    )
    parser.add_argument("--rate", type=float, default=4, help="interactive requests per second (default: 4)")
    parser.add_argument(
        "--window", type=int, default=48, help="maximum number of open requests of the job (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=120, help="tokens of each of the job's answers (default: %(default)s)"
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=16,
        help="number of answers that the engine generates at once (default: %(default)s)",
    )
    parser.add_argument(
        "--scale", type=float, default=2, help="factor by which the engine is slower than an H100 (default: 2)"
    )
    return measure(parser.parse_args(), lambda text: print(text, flush=True))


if __name__ == "__main__":
    sys.exit(main())
