"""Compare the plan of ``railbus plan batch --sample`` with real runs.

``python -m tests.bench.sample_plan --engine simulated`` runs a sample of prompts on an engine. From the sample, it
predicts the duration of a job for each of six ways to run it. Here, a way is a number of concurrent requests and a
number of tokens per answer. The benchmark also runs each way on the same engine, with other prompts. The number of
these prompts grows with ``--requests`` (default 120). The benchmark prints the predicted and the measured hours, scaled
to 200,000 requests.

Without ``--tree``, each way's prompts are divided into four parts. Two parts of every way run before the sample, and
two parts run after it. So changes in the speed of the machine affect all ways about equally.

With ``--tree``, the engine runs in a tree, as ``railbus up`` starts it. The engine ``openai`` sends the sample to the
tree's edge. Each way is a job of ``railbus batch run``, with the number of concurrent requests as its ``--window``. The
job is run twice, the second time with three times as many prompts. The measured time is the difference of the two
durations. So it does not contain the start and the end of the command.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from services.generator.bench.workload import WORDS
from services.physics.statistics import median
from services.planner.batch.sample import sampled_engine, sampled_loop
from services.planner.batch.sample_file import divided
from services.planner.batch.sample_runner import run_loops
from tests.support.tree import Tree, running_tree
from tests.support.waiting import wait_until

JOB: Final = 200_000

TURNS: Final = 4
"""Number of parts into which the prompts of each way are divided."""

TIED: Final = 0.1
"""If the times of two ways differ by less than this share, their order is not judged."""


def prompts(count: int, tokens: int, seed: int) -> list[str]:
    """Return ``count`` prompts of about ``tokens`` tokens. They begin differently, so that no prefix cache helps."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(tokens // 2, tokens * 3 // 2))) for _ in range(count)]


def ways(at_once: int, output: int) -> list[tuple[int, int]]:
    """Return six ways, each as (number of concurrent requests, number of tokens per answer).

    The numbers of requests are ``at_once``, 3/8 of ``at_once`` (at least 2), and 1. The numbers of tokens are
    ``output`` and half of ``output``.

    A job with ``at_once`` and ``output`` takes about as long as a job with half of both numbers. So the factor is 3/8
    instead of 1/2: each of the six ways should take a different time.
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
    parser.add_argument(
        "--tree",
        action="store_true",
        help="run the engine in a tree of `railbus up`, and each way as a job of `railbus batch run`",
    )
    args = parser.parse_args(arguments)
    if not args.tree:
        report(args, None)
        return
    settings = {"RAILBUS_GENERATOR_BATCH_SLOTS": str(args.at_once), "RAILBUS_LLAMA_SLOTS": str(args.at_once)}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_tree(Path(folder), "--engine", args.engine, start_s=120, **settings) as tree,
    ):
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", 120)
        report(args, tree)


def job_ms(tree: Tree, name: str, texts: Sequence[str], at_once: int, output: int) -> float:
    """Run a batch job in the tree, and return its duration in milliseconds.

    Args:
        tree: The running tree.
        name: Name of the job's folder and input file.
        texts: The prompts.
        at_once: Maximum number of open requests.
        output: Maximum number of tokens of each answer.
    """
    path = tree.folder / f"{name}.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    began_s = time.monotonic()
    done = tree.railbus(
        "batch", "run", path.name, "--out", name, "--window", str(at_once), "--max-tokens", str(output),
        "--temperature", "0", timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    return (time.monotonic() - began_s) * 1e3


def turn(engine: str, runs: Sequence[tuple[int, int, list[str]]], number: int) -> list[float]:
    """Start the engine once, and let it answer one part of each way's prompts.

    Args:
        engine: Name of the engine.
        runs: For each way, the number of concurrent requests, the number of tokens per answer, and the prompts.
        number: Number of the part, from 0 to ``TURNS - 1``.

    Returns:
        The time per request of each way, in milliseconds.
    """
    parts = [(at_once, output, texts[number::TURNS]) for at_once, output, texts in runs]
    return [sampled_loop(result).each_ms for result in run_loops(engine, parts, limit_s=500, request_s=60)]


def report(args: argparse.Namespace, tree: Tree | None) -> None:
    """Plan from a sample, and run each way. Print the planned and the measured hours, and the errors of the plan.

    If ``tree`` is None, the engine runs without Railbus's services. Otherwise, the ways run as jobs in the tree.
    """
    every = ways(args.at_once, args.output)
    runs = []
    for number, (at_once, output) in enumerate(every):
        if args.tree:  # so that every way takes about as long
            count = max(4, args.requests * at_once // 2)
        else:
            count = max(args.requests, 3 * at_once) if at_once > 1 else args.requests // 3
        runs.append((at_once, output, prompts(count, args.prompt, 2 + number)))
    turns = [] if tree is not None else [turn(args.engine, runs, number) for number in range(TURNS // 2)]
    loops = [(n, args.output, texts) for n, texts in divided(prompts(args.sample, args.prompt, 1), args.at_once)]
    asked, env = (args.engine, {}) if tree is None else ("openai", {"RAILBUS_UPSTREAM_URL": tree.url})
    engine = sampled_engine(run_loops(asked, loops, limit_s=250, request_s=60, env=env))
    steps = ", ".join(f"{step:.1f} ms with {n}" for n, step in engine.steps)
    print(f"sample of {args.sample}: a prompt's token {engine.token_prompt_ms:.4f} ms, a step {steps}")
    if tree is None:
        turns += [turn(args.engine, runs, number) for number in range(TURNS // 2, TURNS)]
    measured = [fmean(each) for each in zip(*turns, strict=True)]
    for number, (at_once, output, texts) in enumerate(runs if tree is not None else ()):
        more = prompts(2 * len(texts), args.prompt, 20 + number)
        short_ms = job_ms(tree, f"short-{number}", texts, at_once, output)
        long_ms = job_ms(
            tree, f"long-{number}", [*more, *prompts(len(texts), args.prompt, 30 + number)], at_once, output
        )
        measured.append((long_ms - short_ms) / len(more))
    errors, order = [], []
    for (at_once, output), each_ms in zip(every, measured, strict=True):
        said = engine.hours(JOB, at_once, engine.output(output))
        ran = JOB * each_ms / 3.6e6
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
