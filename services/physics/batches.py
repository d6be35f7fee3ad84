"""Compute the throughput of batch work whose prompts share a prefix. Times in seconds.

Prefill and decode alternate on the accelerator (no overlap), so a request costs the sum of both: its prompt's
arithmetic, and its share of each decode step, which reads the weights once and every sequence's KV cache (Pope et al.
2022, sections 2 and 4). The batch is as large as memory allows.
"""

from dataclasses import dataclass
from typing import Final

from services.physics.checks import positive, whole
from services.physics.gpus import Gpu
from services.physics.models import Model
from services.physics.roofline import (
    BATCHED,
    KV_BYTES,
    Efficiency,
    Precision,
    kv_bytes,
    kv_bytes_per_token,
    multiply_ms,
    prefill_ms,
    require_fit,
    weight_bytes,
    weight_bytes_read,
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


def kv_value_bytes(gpu: Gpu) -> float:
    """Return the bytes of a cached value in batch work: one on hardware with FP8 arithmetic, else BF16's two."""
    return KV_BYTES if gpu.flops_fp8 is None else KV_BYTES / 2


def throughput(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    work: BatchWork,
    *,
    efficiency: Efficiency = BATCHED,
    memory: float = BATCH_MEMORY,
) -> Throughput:
    """Return the throughput of the largest batch that fits into memory.

    Raises:
        ValueError: Not even one sequence fits.
    """
    require_fit(model, gpu, precision)
    scale = kv_value_bytes(gpu) / KV_BYTES
    cached = work.shared if work.prefix_cached else 0
    prompt = work.shared + work.own
    prefix = cached * kv_bytes_per_token(model, beyond_window=True)  # local layers keep only their window
    per_sequence = (kv_bytes(model, prompt + work.output) - prefix) * scale
    free = gpu.memory_bytes * positive("memory", memory) - weight_bytes(model, precision) - prefix * scale
    batch = min(work.requests, int(free // per_sequence))
    if batch < 1:
        raise ValueError(
            f"{model.name} in {precision} leaves no room for a sequence of {prompt + work.output} tokens on {gpu.name}"
        )
    prefill_s = prefill_ms(model, gpu, precision, prompt - cached, cached=cached, efficiency=efficiency) / 1e3
    context = prompt + work.output // 2
    read = weight_bytes_read(model, precision) + batch * kv_bytes(model, context) * scale
    reading_s = read / (gpu.bandwidth * efficiency.bandwidth)
    multiplying_s = multiply_ms(model, gpu, precision, tokens=batch, context=context, efficiency=efficiency) / 1e3
    decode_s = work.output * max(reading_s, multiplying_s) / batch
    return Throughput(
        batch=batch, prefill_s=prefill_s, decode_s=decode_s, hours=work.requests * (prefill_s + decode_s) / 3_600
    )
