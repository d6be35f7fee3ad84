"""Compare the queueing model of ``railbus plan serve`` with the scheduler of the simulated engine, in virtual time.

``python -m tests.bench.serve_queue`` runs Poisson arrivals through the engine's own batch scheduler at several loads.
It prints the times to first token and between tokens, as the scheduler gives them and as the model predicts them, and
the errors of the model. ``--requests N`` sets the number of requests at each load (3000). ``--case N`` runs only one of
the cases. ``--seeds N`` sets the number of runs whose mean is compared (3), because the random arrivals of a single run
may change its p99 by 15 %.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from services.generator.engines.simulated.batch_scheduler import BatchScheduler, CostModel
from services.generator.engines.simulated.fault_script import FaultScript
from services.generator.engines.simulated.sequence import SimulatedSequence
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.pairing import SpeculationPair
from services.physics.roofline import prefill_flop, step_ms
from services.physics.statistics import median, percentile
from services.planner.serve.plan import READING, Demand, EngineKind, kind_of
from services.planner.serve.queue import queue_times
from services.worker.engine import EngineStep

LOADS: Final = (0.2, 0.5, 0.7, 0.85)
"""Shares of the highest rate of requests that the engine can serve according to the queueing model."""

COUNTED: Final = (0.5, 0.9)
"""Begin and end of the requests that count, as shares of all requests. The first requests do not count, because the
engine starts empty: at 85 % load, the number of running answers becomes steady only after a thousand requests. The last
requests do not count, because the engine runs empty after them."""


@dataclass(frozen=True, slots=True)
class QueueCase:
    """An engine and its requests.

    Attributes:
        gpu: Name of the GPU.
        model: Name of the model.
        prompt: Number of tokens of each prompt.
        output: Number of tokens of each answer.
        budget: Maximum number of prompt tokens in a step.
        batch: Maximum number of answers that run at the same time.
    """

    gpu: str
    model: str
    prompt: int
    output: int
    budget: int = 2_048
    batch: int = 256

    def __str__(self) -> str:
        return f"{self.model} on {self.gpu}, {self.prompt} + {self.output}"


CASES: Final = (
    QueueCase("h100", "gemma-3-27b", 512, 200), QueueCase("h100", "gemma-3-27b", 1_500, 50),
    QueueCase("h100", "gemma-3-27b", 128, 300), QueueCase("l4", "gemma-3-4b", 512, 100),
    QueueCase("a100-80", "llama-3-8b", 3_000, 100),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """The latencies of requests, in milliseconds.

    Attributes:
        p50: Median of the time to first token.
        p99: 99th percentile of the time to first token.
        token_ms: Mean time between tokens.
    """

    p50: float
    p99: float
    token_ms: float


def cost_model(case: QueueCase) -> CostModel:
    on, shape = gpu(case.gpu), model(case.model)
    pair = SpeculationPair(target=shape, draft=shape, gpu=on, precision="fp8")
    return CostModel(pair=pair, gamma=0, alpha=0.0, batch=case.batch, budget=case.budget)


def simulated(case: QueueCase, rate: float, requests: int, seed: int) -> LatencyFigures:
    """Run the scheduler in virtual time with random arrivals, and return the latencies.

    Args:
        case: The engine and its requests.
        rate: Arrivals per second.
        requests: Number of requests.
        seed: Seed of the random arrivals.
    """
    rng = random.Random(seed)
    scheduler, now, due = BatchScheduler(cost_model(case)), 0.0, 0.0
    arrivals = []
    for _ in range(requests):
        due += rng.expovariate(rate / 1e3)
        arrivals.append(due)
    waiting, ends, last = iter(arrivals), [], {}
    coming = next(waiting, None)
    while len(ends) < requests:
        while coming is not None and coming <= now:
            scheduler.add(
                SimulatedSequence(
                    prompt=case.prompt, length=case.output, truncated=False, rng=rng, script=FaultScript(),
                    arrived_ms=coming,
                )
            )  # fmt: skip
            coming = next(waiting, None)
        plan = scheduler.plan(now)
        if plan is None:
            assert coming is not None
            now = coming
            continue
        now += plan.duration_ms
        for sequence, item in scheduler.complete(plan, now):
            if isinstance(item, EngineStep):
                last[id(sequence)] = now
            else:
                ends.append((sequence.arrived_ms, sequence.first_ms, last.pop(id(sequence))))
    first, last_one = (int(requests * share) for share in COUNTED)
    counted = sorted(ends)[first:last_one]
    firsts = [first - arrived for arrived, first, _ in counted]
    gaps = [(end - first) / (case.output - 1) for _, first, end in counted]
    return LatencyFigures(median(firsts), percentile(firsts, 0.99), sum(gaps) / len(gaps))


def kind(case: QueueCase) -> EngineKind:
    """Describe the case's engine for the queueing model, with the same constants as in the simulated scheduler."""
    cost = cost_model(case)
    pair, flop = cost.pair, prefill_flop(cost.pair.target, case.prompt)
    demand = Demand(
        users=1, every_s=1, prompt=case.prompt, cached=0, output=case.output, limits=READING,
    )  # fmt: skip

    def step(running: int, prompts: float) -> float:
        return step_ms(
            pair.target, pair.gpu, pair.precision,
            batch=running, context=demand.context, prefill_flop=prompts * flop,
            prefill_tokens=round(prompts * case.prompt), kv=pair.kv, efficiency=pair.achieved,
        )  # fmt: skip

    return kind_of(str(case), case.gpu, 1, step, demand, capacity=case.batch, budget=case.budget)


def modelled(of: EngineKind, output: int, rate: float) -> LatencyFigures | None:
    seen = queue_times(of.step_ms, rate, output, of.prompts, of.capacity)
    return None if seen is None else LatencyFigures(seen.ttft_ms(0.5), seen.ttft_ms(0.99), seen.token_ms)


def highest_rate(of: EngineKind, output: int) -> float:
    """Return the highest rate of requests, per second, that the engine can serve according to the queueing model."""
    low, high = 0.0, 1.0
    while modelled(of, output, high) is not None:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if modelled(of, output, middle) is None else (middle, high)
    return low


def errors(
    case: QueueCase, loads: Sequence[float], requests: int, seeds: int = 1
) -> list[tuple[float, LatencyFigures, LatencyFigures]]:
    """Return, for each load, the rate, the scheduler's latencies, and the latencies that the queueing model predicts.

    Args:
        case: The engine and its requests.
        loads: Shares of the highest rate that the engine can serve according to the queueing model.
        requests: Number of requests at each load.
        seeds: Number of runs whose mean is returned as the scheduler's latencies.
    """
    of, found = kind(case), []
    most = highest_rate(of, case.output)
    for load in loads:
        said = modelled(of, case.output, load * most)
        assert said is not None
        runs = [simulated(case, load * most, requests, seed + 1) for seed in range(seeds)]
        mean = LatencyFigures(
            fmean(run.p50 for run in runs), fmean(run.p99 for run in runs), fmean(run.token_ms for run in runs)
        )
        found.append((load * most, mean, said))
    return found


def main(arguments: Sequence[str]) -> None:
    requests, seeds = (
        int(arguments[arguments.index(name) + 1]) if name in arguments else usual
        for name, usual in (("--requests", 3_000), ("--seeds", 3))
    )
    cases = CASES[int(arguments[arguments.index("--case") + 1]) :][:1] if "--case" in arguments else CASES
    every: dict[str, list[float]] = {"p50": [], "p99": [], "token_ms": []}
    for case in cases:
        print(f"{case}: ms, measured / modelled")
        for load, (rate, measured, said) in zip(LOADS, errors(case, LOADS, requests, seeds), strict=True):
            parts = []
            for name, label in (("p50", "first token p50"), ("p99", "p99"), ("token_ms", "a token")):
                error = getattr(said, name) / getattr(measured, name) - 1
                every[name].append(abs(error))
                parts.append(f"{label} {getattr(measured, name):.1f} / {getattr(said, name):.1f} ({error:+.0%})")
            print(f"  load {load:.0%}, {rate:.1f}/s: {', '.join(parts)}", flush=True)
    for name, values in every.items():
        print(f"{name}: median error {median(values):.1%}, worst {max(values):.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
