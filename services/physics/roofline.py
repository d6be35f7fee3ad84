"""The roofline model of inference: decode is bound by memory bandwidth, prefill by arithmetic.

The roofline (Williams, Waterman, Patterson 2009) bounds a step's time from below by bytes / bandwidth and by
FLOP / rate. The bytes and FLOP of transformers follow Pope et al., "Efficiently Scaling Transformer Inference" (2022).
Times are in milliseconds, sizes in bytes, rates per second.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from services.physics.checks import positive, whole
from services.physics.gpus import Gpu
from services.physics.models import Model

Precision = Literal["bf16", "fp8", "int4"]

LINEAR_BYTES: Final[dict[str, float]] = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes per parameter of the linear layers; int4 adds one 16-bit scale per group of 128."""

HEAD_BYTES: Final = 2.0
"""Bytes per parameter of embedding and output head, which stay in BF16 in published FP8 and int4 weights."""

KV_BYTES: Final = 2.0
"""Bytes per cached value: BF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The share of the data sheet's rates that an engine achieves.

    Attributes:
        flops: Share of the arithmetic rate, in prefill. 0.43: NIM serving Llama 3.3 70B FP8 on two H100, 406.8 ms for
            5,000 tokens.
        bandwidth: Share of the memory rate, in decode. 0.74: Gemma 4 31B BF16 on an H100, 40.3 tokens per second.
    """

    flops: float = 0.43
    bandwidth: float = 0.74

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"efficiency of {name} must be above 0 and at most 1, not {getattr(self, name)!r}")


FLOOR: Final = Efficiency(flops=1.0, bandwidth=1.0)
"""The lower bound for any engine."""
PRACTICAL: Final = Efficiency()
"""Measured on good engines."""
BATCHED: Final = Efficiency(flops=0.50, bandwidth=0.75)
"""The same for large batches, which keep both memory and arithmetic busy."""


def weight_bytes(model: Model, precision: Precision) -> float:
    """Return the bytes of all weights in memory."""
    head = model.head_parameters * (1 if model.tied else 2)
    return model.linear_parameters * _linear_bytes(precision) + head * HEAD_BYTES


def weight_bytes_read(model: Model, precision: Precision) -> float:
    """Return the bytes of weights read in one decode step; of an untied input embedding only single rows are read."""
    return model.linear_parameters * _linear_bytes(precision) + model.head_parameters * HEAD_BYTES


def kv_bytes_per_token(model: Model, *, beyond_window: bool = False) -> float:
    """Return the KV cache bytes of one more token: 2 x layers x KV heads x head width x bytes per value.

    Beyond the window the local layers drop a token for each new one, so only the global layers' caches grow.
    """
    layers = model.global_layers if beyond_window else model.layers
    return 2 * layers * model.kv_heads * model.head_dim * KV_BYTES


def kv_bytes(model: Model, context: int) -> float:
    """Return the KV cache bytes of a sequence of ``context`` tokens; each decode step reads them once."""
    whole("context", context)
    within = context if model.window is None else min(context, model.window)
    return within * kv_bytes_per_token(model) + (context - within) * kv_bytes_per_token(model, beyond_window=True)


def prefill_flop(model: Model, tokens: int, *, cached: int = 0) -> float:
    """Return the FLOP to prefill ``tokens`` prompt tokens after ``cached`` ones that are in the KV cache.

    2 per linear parameter and token (Kaplan et al. 2020, section 2.1), the head for the last token only, and 4 x
    heads x head width for each pair of tokens in attention.
    """
    whole("tokens", tokens)
    whole("cached", cached)
    linear = 2.0 * model.linear_parameters * tokens + (2.0 * model.head_parameters if tokens else 0.0)
    pairs = model.global_layers * attended_pairs(tokens, cached, None)
    pairs += model.local_layers * attended_pairs(tokens, cached, model.window)
    return linear + 4.0 * model.heads * model.head_dim * pairs


def attended_pairs(tokens: int, cached: int, window: int | None) -> float:
    """Return the pairs of tokens in causal attention: token i attends to i tokens, at most to the window."""

    def upto(n: int) -> float:
        if window is None or n <= window:
            return n * n / 2
        return window * window / 2 + (n - window) * window

    return upto(cached + tokens) - upto(cached)


def prefill_ms(
    model: Model, gpu: Gpu, precision: Precision, tokens: int, *, cached: int = 0, efficiency: Efficiency = FLOOR
) -> float:
    """Return the milliseconds to prefill ``tokens`` uncached tokens: FLOP / rate."""
    return prefill_flop(model, tokens, cached=cached) / (gpu.flops(precision) * efficiency.flops) * 1e3


def decode_ms(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int = 1,
    context: int = 512,
    positions: int = 1,
    efficiency: Efficiency = FLOOR,
) -> float:
    """Return the milliseconds of one decode step: the maximum of reading and multiplying.

    Args:
        model: The model.
        gpu: The accelerator.
        precision: Precision of the linear layers.
        batch: Sequences in the step.
        context: Tokens in each sequence's KV cache.
        positions: Tokens verified per sequence; gamma + 1 with speculation.
        efficiency: Achieved share of the data sheet's rates.
    """
    whole("batch", batch, least=1)
    whole("positions", positions, least=1)
    reading = read_ms(model, gpu, precision, batch=batch, context=context, efficiency=efficiency)
    multiplying = multiply_ms(model, gpu, precision, tokens=batch * positions, context=context, efficiency=efficiency)
    return max(reading, multiplying)


def read_ms(
    model: Model, gpu: Gpu, precision: Precision, *, batch: int, context: int, efficiency: Efficiency = FLOOR
) -> float:
    """Return the milliseconds to read the weights and the KV caches of ``batch`` sequences of ``context`` tokens."""
    read = weight_bytes_read(model, precision) + whole("batch", batch) * kv_bytes(model, context)
    return read / (gpu.bandwidth * efficiency.bandwidth) * 1e3


def multiply_ms(
    model: Model, gpu: Gpu, precision: Precision, *, tokens: int, context: int, efficiency: Efficiency = FLOOR
) -> float:
    """Return the milliseconds of arithmetic for ``tokens`` decoded tokens, each after ``context`` others."""
    flop = whole("tokens", tokens) * token_flop(model, context)
    return flop / (gpu.flops(precision) * efficiency.flops) * 1e3


def token_flop(model: Model, context: int) -> float:
    """Return the FLOP of one decoded token: 2 per multiplied parameter, and attention over the context."""
    local = context if model.window is None else min(context, model.window)
    attended = model.global_layers * context + model.local_layers * local
    return 2.0 * (model.linear_parameters + model.head_parameters) + 4.0 * model.heads * model.head_dim * attended


def compute_bound_tokens(model: Model, gpu: Gpu, precision: Precision, *, efficiency: Efficiency = BATCHED) -> float:
    """Return the tokens per step (batch x positions) above which multiplying takes longer than reading the weights."""
    reading = weight_bytes_read(model, precision) / (gpu.bandwidth * efficiency.bandwidth)
    per_token = 2.0 * model.linear_parameters / (gpu.flops(precision) * efficiency.flops)
    return reading / per_token


def require_fit(model: Model, gpu: Gpu, precision: Precision, *, batch: int = 1, context: int = 0) -> None:
    """Refuse a model and batch that do not fit into memory.

    Raises:
        ValueError: Weights and KV caches need more memory than the accelerator has; the message gives the sizes.
    """
    need = weight_bytes(model, precision) + whole("batch", batch, least=1) * kv_bytes(model, context)
    if need > gpu.memory_bytes:
        raise ValueError(
            f"{model.name} in {precision} needs {need / 1e9:.1f} GB for weights and {batch} x {context} cached tokens; "
            f"{gpu.name} has {gpu.memory_bytes / 1e9:.0f} GB"
        )


def largest_batch(model: Model, gpu: Gpu, precision: Precision, context: int, *, headroom: float = 0.9) -> int:
    """Return how many sequences of ``context`` tokens fit, with the weights, into the share ``headroom`` of memory."""
    positive("headroom", headroom)
    free = gpu.memory_bytes * headroom - weight_bytes(model, precision)
    per_sequence = kv_bytes(model, whole("context", context, least=1))
    return max(0, int(free // per_sequence))


def _linear_bytes(precision: str) -> float:
    found = LINEAR_BYTES.get(precision)
    if found is None:
        raise ValueError(f"precision {precision!r} is not known; known are {', '.join(get_args(Precision))}")
    return found
