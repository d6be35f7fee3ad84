"""Run a simulation for each of many seeds, in one process or in several, and summarise the results."""

import gc
import hashlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from services.simulator.failing_run import draw_timeline, shrink
from services.simulator.plan import FAULT_KINDS, draw
from services.simulator.world import Result, World

PART: Final = 10
"""Number of seeds that a worker process gets at a time."""

AHEAD: Final = 100
"""Number of parts per worker process that wait in memory at most."""

MOST_TOLD: Final = 20
"""Maximum number of failing seeds for which a line is printed."""


@dataclass
class Summary:
    results: list[Result] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def broken(self) -> list[Result]:
        return [each for each in self.results if each.violation is not None]

    def __str__(self) -> str:
        results, runs = self.results, max(len(self.results), 1)
        whole = hashlib.blake2b("".join(each.digest for each in results).encode(), digest_size=8).hexdigest()
        requests, faults = sum(each.requests for each in results), sum(each.faults for each in results)
        return (
            f"{len(results)} runs, {requests} requests ({requests / runs:.1f} a run,"
            f" {sum(each.healthy for each in results)} judged healthy), {faults} faults ({faults / runs:.1f} a run),"
            f" {sum(each.rebalances for each in results)} rebalances, {sum(each.records for each in results)} records,"
            f" {sum(each.events for each in results)} events, {len(results) / max(self.cpu_s, 1e-9):.1f} runs/s of CPU,"
            f" {len(self.broken)} violations, schedule {whole}"
        )


def simulate(seeds: range, kinds: tuple[str, ...] = FAULT_KINDS, seconds: float = 0.0, workers: int = 1) -> Summary:
    """Run a simulation for each seed. Print the first ``MOST_TOLD`` simulations that fail.

    ``seconds`` limits the CPU time of all processes together; 0 means no limit.
    """
    summary = Summary()
    # Made one by one: there may be more seeds than fit into memory, with a limit of time.
    parts = (seeds[at : at + PART] for at in range(0, len(seeds), PART))
    if workers == 1:
        _gather(summary, map(partial(run_part, kinds), parts), seconds)
        return summary
    silent = (signal.SIGINT, signal.SIG_DFL)  # after Ctrl-C, no worker prints a traceback
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=signal.signal, initargs=silent
    ) as pool:
        while some := [*islice(parts, AHEAD * workers)]:
            _gather(summary, pool.map(partial(run_part, kinds), some), seconds)
            if 0 < seconds < summary.cpu_s:
                break
        pool.shutdown(cancel_futures=True)
    return summary


def run_part(kinds: tuple[str, ...], seeds: range) -> tuple[list[Result], float]:
    """Run a simulation for each seed, with faults of ``kinds``. Return the results and the CPU time in seconds."""
    began_s, results = time.process_time(), list[Result]()
    gc.freeze()
    gc.disable()  # a run is short and leaves few reference cycles
    for seed in seeds:
        world = World(draw(seed, kinds))
        results.append(world.run())
        world.take_apart()
    gc.collect()
    gc.enable()
    return results, time.process_time() - began_s


def _gather(summary: Summary, parts: Iterator[tuple[list[Result], float]], seconds: float) -> None:
    for results, cpu_s in parts:
        summary.results += results
        summary.cpu_s += cpu_s
        for result in results:
            if result.violation is not None and len(summary.broken) <= MOST_TOLD:
                sys.stdout.write(f"seed {result.seed}: {result.violation}\n")
                sys.stdout.flush()
        if 0 < seconds < summary.cpu_s:
            return


def explain(result: Result, kinds: tuple[str, ...] = FAULT_KINDS) -> str:
    if result.violation is None:
        return f"seed {result.seed} breaks no promise"
    plan = shrink(draw(result.seed, kinds), result.violation.promise)
    again = World(plan, trace=True).run()
    lines = [
        f"seed {result.seed}: {again.violation}",
        f"{len(plan.faults)} of {result.faults} faults are needed:",
        *map(str, plan.faults),
        draw_timeline(again.lines or [], str(again.violation)),
    ]
    return "\n".join(lines)
