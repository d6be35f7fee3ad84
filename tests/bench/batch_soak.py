"""Run batch requests while services are killed. Check that each request is answered. Print rate and CPU time.

    python -m tests.bench.batch_soak --requests 2000 --window 200 --kills 1

``railbus up`` starts a governed tree: embedded broker, rails and safety with the default policy, and the simulated
engine. ``tests.bench.batch_load`` submits the requests, and keeps at most ``--window`` of them open. While it runs,
each service in ``--strike`` is killed ``--kills`` times with ``kill -9``, and the supervisor starts the service again.

The table shows the CPU time of each service per answer. It also shows the memory of each service at two moments: when
a fifth of the requests are closed, and at the end. The last line compares two rates, in answers per second: the rate of
the tree, and the rate of a simulated engine alone, with all slots of the batch lane always full. The pipeline's cost is
the percentage by which the tree's rate is lower.

Exit code 1 means that a request has neither a whole answer nor a denial by a rail.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from services.generator.engines.simulated.batch_scheduler import BatchScheduler
from services.generator.engines.simulated.fault_script import parse_script
from services.generator.engines.simulated.sequence import SimulatedSequence
from services.generator.engines.simulated.settings import SimulatedSettings
from services.worker.engine import GenerationResult
from services.worker.scheduler import most_batch
from tests.bench.batch_load import FINE, PROMPT
from tests.support.tree import Tree, running_tree

STRUCK = "rails,router,generator,safety,broker"
EVERY_S = 0.5
PATIENCE_S = 540.0


class Usage:
    """CPU time and memory of each service of a tree. The CPU time includes processes that were killed.

    Attributes:
        cpu_s: CPU seconds of each service since this object was made, summed over the service's processes.
        rss_mib: Resident memory of each service at the last call of ``look``, in MiB.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._by_pid: dict[tuple[str, int], float] = {}
        self._before: dict[tuple[str, int], float] = {}
        self.rss_mib: dict[str, float] = {}
        self.look()
        self._before = dict(self._by_pid)  # what the start of the tree has cost

    def look(self) -> None:
        """Record CPU time and memory now. CPU time that a process uses after the last call is not counted."""
        rss: dict[str, float] = {}
        for service, pid in self._tree.state["pids"].items():
            try:
                first = psutil.Process(pid)
                processes = [first, *first.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in processes:
                try:
                    self._by_pid[service, process.pid] = sum(process.cpu_times()[:2])
                    rss[service] = rss.get(service, 0.0) + process.memory_info().rss / 2**20
                except psutil.NoSuchProcess:
                    continue
        self.rss_mib = rss

    @property
    def cpu_s(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for (service, pid), used_s in self._by_pid.items():
            total[service] = total.get(service, 0.0) + used_s - self._before.get((service, pid), 0.0)
        return total


def engine_rate(settings: SimulatedSettings, tokens: int, count: int = 300, *, prompt: int = len(PROMPT) // 4) -> float:
    """Return the answers per second of the simulated engine alone, with all slots of the batch lane always full.

    Args:
        settings: Settings of the engine.
        tokens: Tokens of each answer.
        count: Number of answers to simulate.
        prompt: Tokens of each prompt.
    """
    scheduler, slots = BatchScheduler(settings.cost_model()), most_batch(settings.sim_batch, 0)
    script = parse_script(f"n{tokens}")

    def one(number: int) -> SimulatedSequence:
        return SimulatedSequence(
            prompt=prompt, length=tokens, truncated=False, rng=random.Random(number), script=script, arrived_ms=0.0
        )

    for number in range(slots):
        scheduler.add(one(number))
    now_ms, ended = 0.0, 0
    while ended < count and (plan := scheduler.plan(now_ms)) is not None:
        now_ms += plan.duration_ms
        for _, item in scheduler.complete(plan, now_ms):
            if isinstance(item, GenerationResult):
                ended += 1
                scheduler.add(one(slots + ended))
    return ended / now_ms * 1e3


def soak(options: argparse.Namespace, tree: Tree) -> tuple[dict, Usage, dict[str, float], int]:
    """Run ``tests.bench.batch_load``, and kill services meanwhile.

    Returns:
        The figures of ``batch_load``, the CPU time and memory of the tree's services, the memory of each service in MiB
        when a fifth of the requests were closed, and the number of kills.
    """
    usage, early, kills = Usage(tree), {}, 0
    strikes = [service for _ in range(options.kills) for service in options.strike.split(",") if service]
    every = options.requests // (len(strikes) + 1)
    job = subprocess.Popen(
        [
            sys.executable, "-m", "tests.bench.batch_load", "--kafka", tree.kafka, "--requests", str(options.requests),
            "--window", str(options.window), "--tokens", str(options.tokens),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    progress: dict[str, int] = {"closed": 0}

    def follow() -> None:
        for line in job.stderr or ():
            if line.startswith("{"):
                progress.update(json.loads(line))
            else:
                sys.stderr.write(line)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    end_s = time.monotonic() + options.limit_s
    try:
        while job.poll() is None and time.monotonic() < end_s:
            usage.look()
            closed = progress["closed"]
            if not early and closed >= options.requests // 5:
                early = dict(usage.rss_mib)
            if strikes and closed >= (kills + 1) * every:
                service = strikes.pop(0)
                print(f"{closed} closed: kill -9 {service}", flush=True)
                tree.kill(service)
                kills += 1
            time.sleep(EVERY_S)
        usage.look()
        if job.poll() is None:
            print(f"not over after {options.limit_s} s: {progress}", flush=True)
            job.terminate()
        said, _ = job.communicate(timeout=60)
    finally:
        if job.poll() is None:
            job.kill()
    return json.loads(said), usage, early, kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument(
        "--window", type=int, default=200, help="maximum number of open requests (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each answer (default: %(default)s)")
    parser.add_argument(
        "--slots",
        type=int,
        default=64,
        help="number of answers that the engine generates at once (default: %(default)s)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1,
        help="factor by which the engine is slower than an H100 (default: %(default)s)",
    )
    parser.add_argument("--kills", type=int, default=0, help="kills of each service in --strike (default: %(default)s)")
    parser.add_argument("--strike", default=STRUCK, help="services to kill (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=PATIENCE_S)
    options = parser.parse_args()
    engine = SimulatedSettings(sim_batch=options.slots, sim_time_scale=options.scale)
    env = {"RAILBUS_SIM_BATCH": str(options.slots), "RAILBUS_SIM_TIME_SCALE": str(options.scale)}
    with tempfile.TemporaryDirectory() as folder, running_tree(
        Path(folder), "--engine", "simulated", governed=True, **env
    ) as tree:  # fmt: skip
        figures, usage, early, kills = soak(options, tree)
    alone, closed = engine_rate(engine, options.tokens), figures["closed"]
    print(json.dumps(figures))
    print("| service | CPU ms an answer | MiB at a fifth | MiB at the end |\n|---|---|---|---|")
    for service, cpu_s in sorted(usage.cpu_s.items(), key=lambda each: -each[1]):
        first, last = early.get(service, 0.0), usage.rss_mib.get(service, 0.0)
        print(f"| {service} | {cpu_s * 1e3 / max(1, closed):.2f} | {first:.0f} | {last:.0f} |")
    total_s = sum(usage.cpu_s.values())
    print(
        f"{kills} kills; {figures['answers_per_s']} answers/s, the engine alone {alone:.1f}:"
        f" the pipeline costs {max(0.0, 1 - figures['answers_per_s'] / alone):.0%} of the time;"
        f" {total_s * 1e3 / max(1, closed):.1f} ms of CPU an answer"
    )
    return int(figures["closed"] != options.requests or not set(figures["outcomes"]) <= FINE)


if __name__ == "__main__":
    sys.exit(main())
