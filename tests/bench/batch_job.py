"""A job through a whole tree, its batch service killed on the way: the rate, and what the batch service costs.

    python -m tests.bench.batch_job --lines 3000 --kills 2

A tree as ``railbus up`` starts it, with the simulated engine; ``--governed`` adds rails and safety. The prompts share
their beginnings in groups. Exit code 1: a line has not exactly one result.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.support.processes import bare_environment
from tests.support.tree import Tree, running_tree
from tests.support.waiting import wait_until

SHARED_CHARS = 1_000
GROUPS = 20
PATIENCE_S = 540.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--scale", default="0.02", help="RAILBUS_SIM_TIME_SCALE")
    parser.add_argument("--governed", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.txt", args.lines)
        with running_tree(
            folder, "--engine", "simulated", governed=args.governed, start_s=120, RAILBUS_SIM_TIME_SCALE=args.scale
        ) as tree:
            return run(tree, args)


def write_prompts(path: Path, count: int) -> None:
    rng = random.Random(1)
    heads = ["".join(rng.choices("abcdefgh ", k=SHARED_CHARS)) for _ in range(GROUPS)]
    with path.open("w") as file:
        file.writelines(f"{heads[n % GROUPS]} Question {n}?\n" for n in range(count))


def run(tree: Tree, args: argparse.Namespace) -> int:
    wait_until(lambda: tree.said("batch ready"), "the batch service serves")
    began = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "batch", "run", "prompts.txt", "--out", "out", "--window",
         str(args.window), "--model", "simulated-n20"],
        cwd=tree.folder, env=bare_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cpu, rss, kills = {}, [], 0
    while job.poll() is None:
        assert time.monotonic() < began + PATIENCE_S, "the job does not end"
        time.sleep(0.5)
        try:
            process = psutil.Process(tree.pid("batch"))
            times = process.cpu_times()
            cpu[process.pid] = times.user + times.system
            rss.append(process.memory_info().rss / 2**20)
        except (psutil.Error, KeyError):
            continue
        if kills < args.kills and time.monotonic() - began > 4 * (kills + 1):
            kills += 1
            tree.kill("batch")
    took = time.monotonic() - began
    names = [json.loads(line)["custom_id"] for line in (tree.folder / "out" / "results.jsonl").open()]
    whole = names == [f"line-{n + 1}" for n in range(args.lines)]
    print(
        f"{args.lines} lines in {took:.1f} s, {args.lines / took:.0f}/s, {kills} kills, each line once: {whole}; batch"
        f" service {sum(cpu.values()) / args.lines * 1e3:.2f} ms of CPU a line, RSS {rss[0]:.0f} to {max(rss):.0f} MiB"
    )
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
