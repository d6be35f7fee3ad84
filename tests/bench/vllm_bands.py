"""Compare vLLM that drafts only in small batches with vLLM that never drafts.

    .venv-vllm/bin/python -m tests.bench.vllm_bands [ROUNDS] [--what bands|executor|rest]

All engines of a comparison are loaded at once, and measured in turns: A B C, then C B A. So a drift of the CPU's clock
affects all engines alike. ``off`` never drafts. ``off again`` is a second engine with the same settings, which shows
how far the times of two equal engines differ. In each round, every engine answers the same prompts at each batch size.
15 rounds take four minutes.

All engines that draft propose 4 tokens up to batch size 4, and none above. The comparisons are:

``bands``     n-gram drafting, measured at batch sizes 1, 4 and 16
``executor``  n-gram drafting, measured at batch size 16: one engine has Railbus's executor, another has vLLM's. After
              each step, vLLM's executor fetches the proposed tokens. Railbus's does so only after steps with drafting
``rest``      a draft model with one small layer, measured at batch size 16
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from schemas.requests import Message, Sampling
from services.generator.engines.vllm import start
from services.generator.engines.vllm.engine import VllmEngine
from services.generator.engines.vllm.settings import VllmSettings
from services.worker.engine import EngineStep, Job
from tests.bench.vllm_model import bench_model, small_draft
from tests.vllm.models import sentence

TOKENS = 48
WORDS = 64
NGRAM = {"vllm_method": "ngram", "vllm_speculative_tokens_by_batch": "1-4:4 5-16:0"}
VLLM_EXECUTOR = "vLLM's executor"
ARMS = {
    "bands": {"off": {}, "by batch": NGRAM, "off again": {}},
    "executor": {"off": {}, "by batch": NGRAM, VLLM_EXECUTOR: NGRAM, "off again": {}},
    "rest": {"off": {}, "at rest": {"vllm_speculative_tokens_by_batch": "1-4:4 5-16:0"}, "off again": {}},
}
BATCHES = {"bands": (1, 4, 16), "executor": (16,), "rest": (16,)}


@dataclass
class Arm:
    """An engine with its measured milliseconds per token: for each batch size, one value per round."""

    engine: VllmEngine
    paces: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


async def main(what, rounds):
    """Run all rounds, and print the table."""
    batches = BATCHES[what]
    with tempfile.TemporaryDirectory() as folder:
        target = bench_model(Path(folder) / "target")
        drafts = {"vllm_draft": small_draft(Path(folder) / "draft")} if what == "rest" else {}
        arms = {name: Arm(engine(target, **how, **(drafts if how else {}))) for name, how in ARMS[what].items()}
        ours = start.SKIP_DRAFT_EXECUTOR
        try:
            for name, arm in arms.items():
                start.SKIP_DRAFT_EXECUTOR = "mp" if name == VLLM_EXECUTOR else ours
                await arm.engine.start()
            for n in range(rounds + 1):
                for batch in batches:
                    for arm in list(arms.values())[:: 1 if n % 2 else -1]:
                        pace = await ask(arm.engine, n, batch)
                        if n:  # the first one warms up
                            arm.paces[batch].append(pace)
        finally:
            for arm in arms.values():
                await arm.engine.close()
    show(arms, batches)


def engine(target, **how):
    """Return a small engine on the CPU. ``how`` contains the settings for drafting, if any."""
    return VllmEngine(
        VllmSettings(
            model_path=target, vllm_device="cpu", vllm_dtype="float32", vllm_kv_gib=0.25, vllm_block_size=32,
            vllm_eager=True, vllm_max_len=512, vllm_max_seqs=16, vllm_prefix_caching=False, **how,
        )
    )  # fmt: skip


async def ask(on, n, batch):
    """Generate ``batch`` answers at once in round ``n``, and return the median of their milliseconds per token."""
    answers = (pace(on, f"{n}-{i}", sentence(31 * n + i, WORDS)) for i in range(batch))
    return statistics.median(await asyncio.gather(*answers))


async def pace(on, run, content):
    """Generate one answer, and return the milliseconds per token after the engine's first step."""
    job = Job(
        request_id=run, run=run, model=on.model, messages=(Message(role="user", content=content),),
        sampling=Sampling(max_tokens=TOKENS, temperature=0),
    )  # fmt: skip
    times, tokens = [], 0
    async for item in on.generate(job):
        if isinstance(item, EngineStep):
            times.append(time.perf_counter())
            tokens += item.tokens if len(times) > 1 else 0
    return 1e3 * (times[-1] - times[0]) / max(1, tokens)


def show(arms, batches):
    """Print each engine's median milliseconds per token, and the quartiles of its relative time, by batch size.

    The relative time of an engine in a round is its time per token, divided by that of the engine named ``off``.
    """
    print(f"{'batch':>5}  {'arm':<15} {'ms a token':>10}   time / off, p25 p50 p75")
    for batch in batches:
        base = arms["off"].paces[batch]
        for name, arm in arms.items():
            paces = arm.paces[batch]
            ratios = statistics.quantiles([a / b for a, b in zip(paces, base, strict=True)], n=4)
            over = " ".join(f"{each:.3f}" for each in ratios)
            print(f"{batch:>5}  {name:<15} {statistics.median(paces):>10.2f}   {over}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=15)
    parser.add_argument("--what", choices=list(ARMS), default="bands")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("ROUNDS must be 2 or more: the table shows quartiles")
    asyncio.run(main(given.what, given.rounds))
