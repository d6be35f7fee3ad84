"""Compute the throughput of batch jobs whose prompts share a prefix.

Prefill and decode are assumed to alternate on the accelerator.
"""

import math
from dataclasses import dataclass
from typing import Final

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.checks import positive, whole
from services.physics.efficiency import Efficiency, practical
from services.physics.newcomers import PREFILL_BUDGET
from services.physics.parallel import LINK_SHARE, ONE, PIPELINE_BALANCE, Layout, communication_ms, divided, group
from services.physics.roofline import (
    KvPrecision,
    decode_ms,
    kv_bytes,
    kv_bytes_per_token,
    prefill_ms,
    require_fit,
    weight_bytes,
)

BATCH_MEMORY: Final = 0.8
"""Share of the memory that weights and KV caches may take. Activations, graphs and fragmentation take the remainder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """Requests that all have the same numbers of tokens.

    Attributes:
        shared: Tokens of the prefix that all prompts have in common.
        own: Tokens of each prompt after this prefix.
        output: Tokens of each answer.
        prefix_cached: Whether the KV cache of the prefix is computed once and used by all requests.
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
    """The predicted speed of a batch job on all its accelerators together.

    Attributes:
        batch: Number of sequences that decode together in one engine, or in one stage of a pipeline.
        prefill_s: Total time of prefill divided by the number of requests, in seconds.
        decode_s: Total time of decoding divided by the number of requests, in seconds.
        hours: Time for all requests, in hours.
    """

    batch: int
    prefill_s: float
    decode_s: float
    hours: float

    @property
    def per_second(self) -> float:
        return 1 / (self.prefill_s + self.decode_s)


def batch_kv(gpu: Gpu) -> KvPrecision:
    """Return the default precision of KV caches in batch jobs: FP8 if the GPU has FP8 arithmetic, else BF16."""
    return "bf16" if gpu.flops_fp8 is None else "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits on the batch of an engine, and the speed of communication between accelerators.

    Attributes:
        sequences: Maximum number of sequences that decode together; None means that only memory limits it.
        memory: Share of the GPU memory that weights and KV caches may take.
        reserved_bytes: Memory for other data, such as a draft model.
        all_reduce_us: Time of a small all-reduce, in microseconds; None means the default for NVLink or PCIe.
        link_share: Share of the link's bandwidth that large messages reach.
        balance: Share of time in which the stages of a pipeline are busy.
    """

    sequences: int | None = None
    memory: float = BATCH_MEMORY
    reserved_bytes: float = 0.0
    all_reduce_us: float | None = None
    link_share: float = LINK_SHARE.value
    balance: float = PIPELINE_BALANCE.value


def throughput(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    work: BatchWork,
    *,
    layout: Layout = ONE,
    limits: BatchLimits = BatchLimits(),
    efficiency: Efficiency | None = None,
    kv: KvPrecision | None = None,
) -> Throughput:
    """Return the throughput with the largest batch that fits into memory.

    If ``efficiency`` is None, ``practical(gpu)`` applies. If ``kv`` is None, ``batch_kv(gpu)`` applies.

    Raises:
        ValueError: The model and a sequence do not fit into memory, or the layout does not suit the model or the
            number of requests.
    """
    efficiency = practical(gpu) if efficiency is None else efficiency
    kv = batch_kv(gpu) if kv is None else kv
    model, one = divided(model, layout), gpu
    gpu = group(gpu, layout)
    require_fit(model, gpu, precision)
    cached = work.shared if work.prefix_cached else 0
    prompt = work.shared + work.own
    prefix = cached * kv_bytes_per_token(model, beyond_window=True, kv=kv)  # local layers keep only their window
    per_sequence = kv_bytes(model, prompt + work.output, kv) - prefix
    free = gpu.memory_bytes * positive("memory", limits.memory) - weight_bytes(model, precision) - prefix
    room = int((free - limits.reserved_bytes) // per_sequence)
    if room < layout.pipeline:
        raise ValueError(
            f"{model.name} in {precision} leaves no room for a sequence of {prompt + work.output} tokens on {one.name}"
        )
    requests = math.ceil(work.requests / layout.replicas)  # of the engine that has most
    most = requests if limits.sequences is None else min(requests, limits.sequences)
    if most < layout.pipeline:
        raise ValueError(f"a pipeline of {layout.pipeline} stages needs as many requests at once, and has {most}")
    batch = min(most, room) // layout.pipeline  # each stage works on another part of the sequences

    def communicating_ms(tokens: float) -> float:
        return communication_ms(
            model, one, layout, tokens, latency_us=limits.all_reduce_us, link_share=limits.link_share
        )  # fmt: skip

    new = prompt - cached
    together = min(batch, max(1, PREFILL_BUDGET // new))
    step = prefill_ms(model, gpu, precision, new, cached=cached, prompts=together, efficiency=efficiency)
    prefill_s = (step + communicating_ms(together * new)) / together / 1e3
    context = prompt + work.output // 2
    step = decode_ms(model, gpu, precision, batch=batch, context=context, kv=kv, efficiency=efficiency)
    decode_s = work.output * (step + communicating_ms(batch)) / batch / 1e3
    # The engines work at the same time, and the last one ends the job. Every stage of a pipeline has a share of the
    # layers, and all stages work at the same time.
    share = requests / work.requests / (layout.pipeline * limits.balance if layout.pipeline > 1 else 1)
    prefill_s, decode_s = prefill_s * share, decode_s * share
    return Throughput(
        batch=batch, prefill_s=prefill_s, decode_s=decode_s, hours=work.requests * (prefill_s + decode_s) / 3_600
    )
