"""Drafting by batch against never drafting, real vLLM.

    .venv-vllm/bin/python -m tests.bench.vllm_bands [ROUNDS] [--what bands|executor|rest]

Engines are loaded at once and asked in turns, A B C C B A, so that a clock that drifts strikes all alike; ``off again``
says how far two equal ones differ. A round asks each the same texts at each batch. Four minutes with 15 rounds.

``bands``     n-gram of 4 up to batch 4, nothing beyond
``executor``  the same at batch 16, with our executor, which asks for drafts after steps that drafted, and with vLLM's
``rest``      a draft model of one small layer, which drafts nothing at batch 16
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
    """An engine, and its milliseconds a token by batch, one each round."""

    engine: VllmEngine
    paces: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


async def main(what, rounds):
    """Prints the table."""
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
    """Tiny and on the CPU."""
    return VllmEngine(
        VllmSettings(
            model_path=target, vllm_device="cpu", vllm_dtype="float32", vllm_kv_gib=0.25, vllm_block_size=32,
            vllm_eager=True, vllm_max_len=512, vllm_max_seqs=16, vllm_prefix_caching=False, **how,
        )
    )  # fmt: skip


async def ask(on, n, batch):
    """The median answer's milliseconds a token, its first left out."""
    answers = (pace(on, f"{n}-{i}", sentence(31 * n + i, WORDS)) for i in range(batch))
    return statistics.median(await asyncio.gather(*answers))


async def pace(on, run, content):
    """Milliseconds a token."""
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
    """Medians, and each round's ratio to ``off``."""
    print(f"{'batch':>5}  {'arm':<15} {'ms a token':>10}   over off, p25 p50 p75")
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
