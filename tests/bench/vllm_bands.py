"""``.venv-vllm/bin/python -m tests.bench.vllm_bands [ROUNDS]``: drafting by batch against never drafting, real vLLM.

Three engines are loaded at once and asked in turns, A B C C B A, so that a clock that drifts strikes all alike:
``off``, ``by batch`` (n-gram of 4 up to batch 4, nothing beyond), and ``off again``, which says how far two equal ones
differ. A round asks each the same texts at each batch. Four minutes with 15 rounds.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from schemas.requests import Message, Sampling
from services.generator.engines.vllm import VllmEngine
from services.generator.engines.vllm_settings import VllmSettings
from services.worker.engine import Job, Step
from tests.vllm.models import make_model, sentence

TOKENS = 48
WORDS = 64
BATCHES = (1, 4, 16)
BANDS = "1-4:4 5-16:0"
ARMS = {"off": {}, "by batch": {"vllm_method": "ngram", "vllm_speculative_tokens_by_batch": BANDS}, "off again": {}}


@dataclass
class Arm:
    """An engine, and its milliseconds a token by batch, one each round."""

    engine: VllmEngine
    paces: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})


async def main(rounds):
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        target = make_model(Path(folder) / "target", seed=5, layers=6, hidden=768)
        arms = {name: Arm(engine(target, **how)) for name, how in ARMS.items()}
        try:
            for arm in arms.values():
                await arm.engine.start()
            for n in range(rounds + 1):
                for batch in BATCHES:
                    for arm in list(arms.values())[:: 1 if n % 2 else -1]:
                        pace = await ask(arm.engine, n, batch)
                        if n:  # the first one warms up
                            arm.paces[batch].append(pace)
        finally:
            for arm in arms.values():
                await arm.engine.close()
    show(arms)


def engine(target, **how):
    """Tiny and on the CPU."""
    return VllmEngine(
        VllmSettings(
            model_path=target, vllm_device="cpu", vllm_dtype="float32", vllm_kv_gib=0.25, vllm_block_size=32,
            vllm_eager=True, vllm_max_len=512, vllm_max_seqs=max(BATCHES), vllm_prefix_caching=False, **how,
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
        if isinstance(item, Step):
            times.append(time.perf_counter())
            tokens += item.tokens if len(times) > 1 else 0
    return 1e3 * (times[-1] - times[0]) / max(1, tokens)


def show(arms):
    """Medians, and each round's ratio to ``off``."""
    print(f"{'batch':>5}  {'arm':<10} {'ms a token':>10}   over off, p25 p50 p75")
    for batch in BATCHES:
        base = arms["off"].paces[batch]
        for name, arm in arms.items():
            paces = arm.paces[batch]
            ratios = statistics.quantiles([a / b for a, b in zip(paces, base, strict=True)], n=4)
            over = " ".join(f"{each:.3f}" for each in ratios)
            print(f"{batch:>5}  {name:<10} {statistics.median(paces):>10.2f}   {over}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
