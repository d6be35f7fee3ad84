"""Run a job while services are killed. Check that each line has one result, and print the rate and the CPU time.

    python -m tests.bench.batch_job --lines 3000 --kills 2
    python -m tests.bench.batch_job --engine llama --lines 2000 --tokens 4 --shared 0 --kills 0 --keep plain.jsonl
    python -m tests.bench.batch_job --engine llama --lines 2000 --tokens 4 --shared 0 --kills 1 --against plain.jsonl

``railbus up`` starts the whole tree. ``--governed`` adds rails and safety with the default policy. The command
``railbus batch run`` submits a file of prompts. While the job runs, each part in ``--strike`` is killed ``--kills``
times with ``kill -9``. The supervisor starts a killed service again. If the command itself is killed (``command`` in
``--strike``), this program starts it again.

At the end, every line must have exactly one result or exactly one error. ``--keep`` writes the answers to a file.
``--against`` compares the answers with those that an undisturbed run has written. After ``--limit-s`` seconds, the job
is cancelled. Lines that are not done by then have the error ``batch_cancelled``. The table shows the CPU time of each
service per line.

Exit code 1 means that a line does not have exactly one result, or has a different answer.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from services.generator.engines.simulated.settings import SimulatedSettings
from tests.bench.batch_soak import Usage, engine_rate
from tests.support.processes import bare_environment
from tests.support.tree import Tree, running_tree
from tests.support.waiting import wait_until

GROUPS = 20
STRUCK = "batch,router,generator,broker,command"
EVERY_S = 0.5
ENDING_S = 90.0
"""Number of seconds that a job may take to end after it was cancelled."""

WORDS = (
    "library", "harbour", "winter", "letter", "garden", "river", "engine", "window", "market", "teacher", "bridge",
    "paper",
    "island", "village", "doctor", "basket", "morning", "kitchen", "journey", "mountain",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_job", description=__doc__)
    parser.add_argument("--engine", choices=("simulated", "llama"), default="simulated")
    parser.add_argument("--lines", type=int, default=3_000)
    parser.add_argument(
        "--shared",
        type=int,
        default=1_000,
        help="length of the prefix that a group of prompts shares, in characters (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens", type=int, default=20, help="maximum number of tokens of an answer (default: %(default)s)"
    )
    parser.add_argument(
        "--window", type=int, default=256, help="maximum number of open requests (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=1, help="kills of each part in --strike (default: %(default)s)")
    parser.add_argument(
        "--strike", default=STRUCK, help="services to kill, and `command` for the command itself (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of `railbus up`; repeatable",
    )
    parser.add_argument("--governed", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the answers to this file")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the answers in this file")
    parser.add_argument(
        "--limit-s", type=float, default=450.0, help="seconds after which the job is cancelled (default: 450)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.txt", args.lines, args.shared)
        settings = dict(pair.split("=", 1) for pair in args.set)
        with running_tree(
            folder, "--engine", args.engine, governed=args.governed, start_s=120, **settings
        ) as tree:  # fmt: skip
            return judge(Job(tree, args), args, settings)


def write_prompts(path: Path, count: int, shared: int) -> None:
    rng = random.Random(1)
    heads = [" ".join(rng.choices(WORDS, k=shared // 6))[:shared] for _ in range(GROUPS)]
    with path.open("w") as file:
        for number in range(count):
            told = (
                f"Tell me in one sentence about the {rng.choice(WORDS)} and the {rng.choice(WORDS)}, number {number}."
            )
            file.write(f"{heads[number % GROUPS]} {told}\n".lstrip())


class Job:
    """A run of ``railbus batch run``, with kills on the way. The constructor returns when the run has ended.

    Attributes:
        tree: The tree in which the command runs.
        done: Number of lines that are done, as the command prints it.
        usage: CPU time and memory of the tree.
        took_s: Seconds from the start of the command to its end.
        kills: For each kill, what was killed, and how many lines were done then.
    """

    def __init__(self, tree: Tree, args: argparse.Namespace) -> None:
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", 120)
        self.kills: list[tuple[str, int]] = []
        self.done = 0
        self.tree, self._args = tree, args
        self._said: list[str] = []
        self.usage = Usage(tree)
        began = time.monotonic()
        self._process = self._start()
        strikes = [service for _ in range(args.kills) for service in args.strike.split(",") if service]
        cancelled, rng = False, random.Random(2)
        try:
            while (code := self._process.poll()) is None:
                passed = (time.monotonic() - began) / args.limit_s
                assert passed * args.limit_s < args.limit_s + ENDING_S, (
                    f"it does not end: {self._said[-3:]}, {self.kills}"
                )
                if passed > 1 and not cancelled:
                    cancelled = self._cancel()
                self.usage.look()
                due = (len(self.kills) + 1) / (len(strikes) + 1)
                if len(self.kills) < len(strikes) and (self.done >= due * args.lines or passed >= due):
                    time.sleep(rng.random())  # anywhere in the second between two checkpoints
                    self._kill(strikes[len(self.kills)])
                time.sleep(EVERY_S)
        finally:
            self._process.kill()
        self.took_s = time.monotonic() - began
        self.usage.look()
        if code not in (0, 1):  # 1: some lines have errors
            raise SystemExit(f"the command ended with {code}: {self._said[-5:]}")

    def _cancel(self) -> bool:
        batch_id = json.loads((self.tree.folder / "out" / "job.json").read_text())["batch_id"]
        return self.tree.railbus("batch", "cancel", batch_id).returncode == 0

    def _kill(self, what: str) -> None:
        self.kills.append((what, self.done))
        if what != "command":
            self.tree.kill(what)
            return
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        args = self._args
        model = ["--model", f"simulated-n{args.tokens}"] if args.engine == "simulated" else []
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "batch", "run", "prompts.txt", "--out", "out", "--window",
             str(args.window), "--max-tokens", str(args.tokens), "--temperature", "0", *model],
            cwd=self.tree.folder, env=bare_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()
        return process

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            self._said.append(line.strip())
            del self._said[:-20]
            if found := re.search(r"\] ([\d,]+)/", line):
                self.done = int(found[1].replace(",", ""))


def answers(path: Path) -> list[tuple[str, Any]]:
    """Read a file of results or errors, and return the ``custom_id`` and the result of each line.

    If the line was answered, the result is the answer's text and number of tokens. Otherwise, it is the error code.
    """
    found: list[tuple[str, Any]] = []
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            if row["error"] is not None:
                found.append((row["custom_id"], row["error"]["code"]))
                continue
            body = row["response"]["body"]
            found.append(
                (row["custom_id"], [body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]])
            )
    return found


def judge(job: Job, args: argparse.Namespace, settings: dict[str, str]) -> int:
    """Print the figures of the job, compare its answers if ``--against`` is given, and return the exit code."""
    out = job.tree.folder / "out"
    results, errors = answers(out / "results.jsonl"), answers(out / "errors.jsonl")
    names = Counter(name for name, _ in results + errors)
    once = names == Counter(f"line-{number + 1}" for number in range(args.lines))
    done = [row for row in results + errors if row[1] != "batch_cancelled"]
    rate, same = len(done) / job.took_s, True
    print(f"killed: {', '.join(f'{what} at {count}' for what, count in job.kills) or 'nothing'}")
    print(
        f"{len(done)} of {args.lines} lines in {job.took_s:.1f} s, {rate:.1f}/s; each once: {once}; {len(results)}"
        f" answers, errors {dict(Counter(code for _, code in errors))}; load average {os.getloadavg()[1]:.1f}"
    )
    if args.keep is not None:
        args.keep.write_text("".join(json.dumps(row) + "\n" for row in done))
    if args.against is not None:
        before = dict(map(tuple, map(json.loads, args.against.read_text().splitlines())))
        both = [(name, result) for name, result in done if name in before]
        other = [name for name, result in both if before[name] != result]
        same = bool(both) and not other
        print(
            f"equal to the undisturbed run: {len(both) - len(other)} of {len(both)} that both did; others: {other[:5]}"
        )
    show_cost(job, args, settings, len(done))
    return 0 if once and same else 1


def show_cost(job: Job, args: argparse.Namespace, settings: dict[str, str], done: int) -> None:
    """Print, for each service, the CPU time per line of the job and the memory at the end of the job.

    With the simulated engine, also print by how much the job was slower than the engine alone.

    Args:
        job: The job that has ended.
        args: Options of the command line.
        settings: Environment variables of the tree.
        done: Number of lines that are done.
    """
    cpu_s = job.usage.cpu_s
    print("| service | CPU ms a line | MiB at the end |\n|---|---|---|")
    for service, used_s in sorted(cpu_s.items(), key=lambda each: -each[1]):
        print(f"| {service} | {used_s * 1e3 / done:.2f} | {job.usage.rss_mib.get(service, 0.0):.0f} |")
    total_s = sum(cpu_s.values())
    pipeline_s = sum(used_s for service, used_s in cpu_s.items() if not service.startswith("generator"))
    print(f"{total_s * 1e3 / done:.2f} ms of CPU a line; {pipeline_s / total_s:.0%} of it outside the generator")
    if args.engine == "simulated":
        variables = {name.removeprefix("RAILBUS_").lower(): value for name, value in settings.items()}
        engine = SimulatedSettings(
            sim_batch=int(variables.get("sim_batch", SimulatedSettings().sim_batch)),
            sim_time_scale=float(variables.get("sim_time_scale", 1)),
        )
        alone = engine_rate(engine, args.tokens, prompt=args.shared // 4 + 20)
        rate = done / job.took_s
        print(f"the engine alone {alone:.1f}/s: the pipeline costs {max(0.0, 1 - rate / alone):.0%} of the time")


if __name__ == "__main__":
    sys.exit(main())
