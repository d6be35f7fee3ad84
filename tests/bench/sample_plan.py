"""Hold the plan from a sample against the job itself: ``python -m tests.bench.sample_plan --engine simulated``.

Runs the sample of ``railbus plan batch --sample`` on an engine, predicts six ways to do the job there, then runs each
of the six with ``--requests`` prompts (120), and prints hours by the plan and by the run, scaled to 200,000 requests.
"""

import argparse
import random
from collections.abc import Sequence
from typing import Final

from services.generator.bench.workload import WORDS
from services.physics.statistics import median
from services.planner.batch.sample import sampled_engine, sampled_loop
from services.planner.batch.sample_file import divided
from services.planner.batch.sample_runner import run_loops

JOB: Final = 200_000

TIED: Final = 0.1
"""Ways that are closer than the plan's own bar have no order."""


def prompts(count: int, tokens: int, seed: int) -> list[str]:
    """Return prompts that begin differently, so that no cache helps."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(tokens // 2, tokens * 3 // 2))) for _ in range(count)]


def ways(at_once: int, output: int) -> list[tuple[int, int]]:
    """Return requests at once and tokens of an answer of six ways.

    Half as many at once with half the tokens would take the same time: the middle number is another.
    """
    fewer = max(2, 3 * at_once // 8)
    return [(each, tokens) for tokens in (output, output // 2) for each in (at_once, fewer, 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="simulated")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--output", type=int, default=40)
    args = parser.parse_args(arguments)
    loops = [(n, args.output, texts) for n, texts in divided(prompts(args.sample, args.prompt, 1), args.at_once)]
    engine = sampled_engine(run_loops(args.engine, loops, limit_s=250, request_s=60))
    steps = ", ".join(f"{step:.1f} ms with {n}" for n, step in engine.steps)
    print(f"sample of {args.sample}: a prompt's token {engine.token_prompt_ms:.4f} ms, a step {steps}")
    every = ways(args.at_once, args.output)
    runs = []
    for number, (at_once, output) in enumerate(every):
        count = max(args.requests, 3 * at_once) if at_once > 1 else args.requests // 3
        runs.append((at_once, output, prompts(count, args.prompt, 2 + number)))
    results = [run_loops(args.engine, [each], limit_s=500, request_s=60) for each in runs]
    measured = [sampled_loop(each) for (each,) in results]
    errors, order = [], []
    for (at_once, output), loop in zip(every, measured, strict=True):
        said = engine.hours(JOB, at_once, engine.output(output))
        ran = JOB * loop.each_ms / 3.6e6
        errors.append(abs(said.value / ran - 1))
        order.append((said.value, ran))
        print(
            f"  {at_once:>3} at once, {output:>4} tokens: plan {said.value:8.2f} h ({said.low:.2f} - {said.high:.2f}), "
            f"run {ran:8.2f} h, error {said.value / ran - 1:+.1%}"
        )
    apart = [(a, b) for a in order for b in order if a[1] > b[1] * (1 + TIED)]
    wrong = sum(a[0] <= b[0] for a, b in apart)
    strict = sorted(order) == sorted(order, key=lambda each: each[1])
    print(
        f"median error {median(errors):.1%}, worst {max(errors):.1%}; ranking: {len(apart) - wrong} of {len(apart)} "
        f"pairs that are more than {TIED:.0%} apart are right; all six in order: {'yes' if strict else 'no'}"
    )


if __name__ == "__main__":
    main()
