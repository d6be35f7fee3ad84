"""Compute the rows of RESULTS.md that need a GPU.

Each row has the measured value and the value that the formulas of `railbus plan latency` predict. A value that was not
measured is shown as "open".
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.physics.catalogue.gpus import GPUS, Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.pairing import SpeculationPair
from services.physics.roofline import kv_bytes_per_token, prefill_ms, weight_bytes
from tests.bench.gpu.arms import SCHEDULE, SPECULATION, Load

VLLM_SHARE = 0.9
"""Share of the GPU's memory that vLLM may use in these arms."""
RESERVED_BYTES = 9.3e9
"""GPU memory for activations and CUDA graphs. The profiles in infra/profiles reserve as much."""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table of RESULTS.md.

    ``measured`` is None if nothing was measured. ``predicted`` is None if no formula predicts the value.
    """

    name: str
    predicted: float | None
    measured: float | None
    unit: str

    def text(self) -> str:
        said = ["open" if self.measured is None else _number(self.measured, self.unit)]
        said.append("" if self.predicted is None else _number(self.predicted, self.unit))
        off = self.measured is not None and self.predicted is not None
        said.append(f"{self.predicted / self.measured - 1:+.0%}" if off else "")
        return f"| {self.name} | {' | '.join(said)} |"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 1_000 else f"{value:.3g} {unit}"


def catalogue_name(name: str) -> str | None:
    """Return a GPU's name in the catalogue of GPUs; None if the catalogue does not have the GPU.

    ``name`` is the name that CUDA reports, such as ``NVIDIA H100 80GB HBM3``.
    """
    words = name.lower().replace("-", " ").split()
    for known in sorted(GPUS, key=len, reverse=True):
        kind, _, memory = known.partition("-")
        if kind in words and memory in ("", *(word.removesuffix("gb") for word in words)):
            return known
    return None


def rows(
    lines: Sequence[Line], gpu: Gpu, target: Model, draft: Model, precision: Precision, load: Load
) -> Iterator[Row]:
    """Yield every row, in the order of the table. ``lines`` are the JSON objects that the runs have printed."""
    pair = SpeculationPair(target=target, draft=draft, gpu=gpu, precision=precision)
    context = load.prompt + load.tokens // 2

    def median(key: str, **wanted: Any) -> float | None:
        usual = {"runner": "v1", "kv": "auto", "schedule": "", "gamma": 0, "prompt": load.prompt, "tokens": load.tokens}
        wanted = usual | wanted
        found = [line[key] for line in lines if key in line and all(line.get(k) == v for k, v in wanted.items())]
        return statistics.median(each for each in found if each is not None) if any(found) else None

    yield from _ceilings(lines, gpu)
    for batch in load.batches:
        step = pair.step_ms(batch=batch, context=context)
        yield Row(f"step of the target, batch {batch}", step, median("ms_per_token", model="target", batch=batch), "ms")
    for batch in load.batches:
        step = pair.draft_ms(batch=batch, context=context)
        yield Row(f"step of the draft, batch {batch}", step, median("ms_per_token", model="draft", batch=batch), "ms")
    for tokens in load.first:
        law = prefill_ms(target, gpu, pair.precision, tokens, efficiency=pair.achieved)
        seen = median("ttft_ms", model="target", batch=1, prompt=tokens, tokens=2)
        yield Row(f"first token of {tokens:,} tokens", law, seen, "ms")
    for arm in sorted(SPECULATION, key=lambda each: (each.alpha, each.gamma)):
        for batch in load.batches:
            gain = _gain(median, batch, gamma=arm.gamma, alpha=arm.alpha)
            law = pair.speedup(arm.alpha, arm.gamma, batch=batch, context=context)
            yield Row(f"speed-up, acceptance {arm.alpha:g}, gamma {arm.gamma}, batch {batch}", law, gain, "x")
    for batch in load.batches:
        v1, v2 = (median("ms_per_token", model="target", batch=batch, runner=runner) for runner in ("v1", "v2"))
        yield Row(f"runner V2 against V1, batch {batch}", None, v1 / v2 if v1 and v2 else None, "x")
        v1, v2 = (
            median("ms_per_token", model="target", batch=batch, runner=runner, gamma=3, alpha=0.8)
            for runner in ("v1", "v2")
        )
        yield Row(f"the same, drafting 3, batch {batch}", None, v1 / v2 if v1 and v2 else None, "x")
    for batch in load.batches:
        eight = median("ms_per_token", model="target", batch=batch, kv="fp8")
        plain = median("ms_per_token", model="target", batch=batch)
        yield Row(f"KV cache in FP8, batch {batch}", None, plain / eight if plain and eight else None, "x")
    for batch in load.batches:
        by_batch = _gain(median, batch, gamma=2, alpha=0.7, schedule=SCHEDULE[0].schedule)
        yield Row(f"speed-up, gamma by batch, acceptance 0.7, batch {batch}", None, by_batch, "x")
    free = gpu.memory_bytes * VLLM_SHARE - weight_bytes(target, pair.precision) - RESERVED_BYTES
    yield Row(
        "room of the KV cache", free / kv_bytes_per_token(target), median("room", model="target", batch=1), "tokens"
    )
    yield Row("from start to loaded", None, median("loaded_s", model="target", batch=1), "s")


def _gain(median: Callable[..., float | None], batch: int, **drafting: Any) -> float | None:
    plain = median("ms_per_token", model="target", batch=batch)
    drafted = median("ms_per_token", model="target", batch=batch, **drafting)
    return plain / drafted if plain and drafted else None


def _ceilings(lines: Sequence[Line], gpu: Gpu) -> Iterator[Row]:
    said = next((line for line in lines if line["run"] == "ceilings"), {})
    kinds = (("bytes_per_s", "bytes copied", gpu.bandwidth, "TB/s"), ("flops_bf16", "BF16", gpu.flops_bf16, "TFLOP/s"))
    for key, name, promised, unit in (*kinds, ("flops_fp8", "FP8", gpu.flops_fp8, "TFLOP/s")):
        measured = said.get(key)
        if promised is not None:
            yield Row(f"ceiling: {name}", promised / 1e12, None if measured is None else measured / 1e12, unit)


def table(found: Sequence[Row], gpu: str) -> str:
    """Return a heading and the rows as a Markdown table. ``gpu`` is the text with which the heading begins."""
    still = sum(row.measured is None for row in found)
    head = f"{gpu}: {len(found) - still} of {len(found)} rows measured\n\n"
    head += "| row | measured | law | law is off by |\n|---|---|---|---|\n"
    return head + "\n".join(row.text() for row in found) + "\n"
