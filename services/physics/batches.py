"""Compute the throughput of batch work whose prompts share a prefix. Times in seconds.

Prefill and decode alternate on the accelerator (no overlap), so a request costs the sum of both: its prompt's
arithmetic, and its share of each decode step, which reads the weights once and every sequence's KV cache (Pope et al.
2022, sections 2 and 4). The batch is as large as memory allows.
"""

from dataclasses import dataclass
from typing import Final

from services.physics.checks import positive, whole
from services.physics.efficiency import Efficiency, practical
from services.physics.gpus import Gpu
from services.physics.models import Model
from services.physics.newcomers import PREFILL_BUDGET
from services.physics.roofline import (
    KvPrecision,
    Precision,
    decode_ms,
    kv_bytes,
    kv_bytes_per_token,
    prefill_ms,
    require_fit,
    weight_bytes,
)

BATCH_MEMORY: Final = 0.8
"""Share of the memory for weights and KV caches; the rest is for activations, graphs and fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """Requests of equal size, in tokens.

    Attributes:
        requests: Number of requests.
        shared: Tokens of the prompts' common prefix.
        own: Tokens of the rest of each prompt.
        output: Tokens of each answer.
        prefix_cached: Whether the KV cache of the prefix is kept once and used by all.
    """

    requests: int
    shared: int
    own: int
    output: int
    prefix_cached: bool = True

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("shared", 0), ("own", 1), ("output", 1)):
            whole(name, getattr(self, name), least=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The throughput of one accelerator.

    Attributes:
        batch: Sequences that decode together.
        prefill_s: Prefill time of one request, in seconds.
        decode_s: One request's share of the decode steps, in seconds.
        hours: Time for all requests, in hours.
    """

    batch: int
    prefill_s: float
    decode_s: float
    hours: float

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return 1 / (self.prefill_s + self.decode_s)


def batch_kv(gpu: Gpu) -> KvPrecision:
    """Return the precision of KV caches in batch work: FP8 on hardware with FP8 arithmetic, else BF16."""
    return "bf16" if gpu.flops_fp8 is None else "fp8"


def throughput(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    work: BatchWork,
    *,
    efficiency: Efficiency | None = None,
    memory: float = BATCH_MEMORY,
) -> Throughput:
    """Return the throughput of the largest batch that fits into memory; without ``efficiency`` of the engine ``vllm``.

    Raises:
        ValueError: Not even one sequence fits.
    """
    require_fit(model, gpu, precision)
    efficiency, kv = practical(gpu) if efficiency is None else efficiency, batch_kv(gpu)
    cached = work.shared if work.prefix_cached else 0
    prompt = work.shared + work.own
    prefix = cached * kv_bytes_per_token(model, beyond_window=True, kv=kv)  # local layers keep only their window
    per_sequence = kv_bytes(model, prompt + work.output, kv) - prefix
    free = gpu.memory_bytes * positive("memory", memory) - weight_bytes(model, precision) - prefix
    batch = min(work.requests, int(free // per_sequence))
    if batch < 1:
        raise ValueError(
            f"{model.name} in {precision} leaves no room for a sequence of {prompt + work.output} tokens on {gpu.name}"
        )
    together = min(batch, max(1, PREFILL_BUDGET // (prompt - cached)))
    step = prefill_ms(
        model, gpu, precision, prompt - cached, cached=cached, prompts=together, efficiency=efficiency
    )  # fmt: skip
    prefill_s = step / together / 1e3
    context = prompt + work.output // 2
    step = decode_ms(model, gpu, precision, batch=batch, context=context, kv=kv, efficiency=efficiency)
    decode_s = work.output * step / batch / 1e3
    return Throughput(
        batch=batch, prefill_s=prefill_s, decode_s=decode_s, hours=work.requests * (prefill_s + decode_s) / 3_600
    )
