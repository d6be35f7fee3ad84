"""Compute the time of an engine step from the bytes that it reads and the FLOP that it computes.

The formula is a roofline (Williams, Waterman, Patterson 2009) with the efficiency of real engines. The formula
adds the fixed time of each layer and each token.

Bytes and FLOP of transformers follow Pope et al., "Efficiently Scaling Transformer Inference" (2022).
"""

from typing import Final, Literal, get_args

from services.physics.catalogue.gpus import GIB, Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.catalogue.precisions import precision as spec_of
from services.physics.checks import positive, whole
from services.physics.efficiency import BATCHED, FLOOR, Efficiency

KvPrecision = Literal["bf16", "fp8"]

KV_BYTES: Final[dict[str, float]] = {"bf16": 2.0, "fp8": 1.0}
"""Bytes per cached value."""

ACTIVATION_BYTES: Final = 2.0
"""Bytes per activation: BF16."""


def weight_bytes(model: Model, precision: Precision) -> float:
    spec = spec_of(precision)
    head = model.head_parameters * (1 if model.tied else 2)
    return (model.stored_linear_parameters * spec.linear_bits + head * spec.head_bits) / 8


def weight_bytes_read(model: Model, precision: Precision, tokens: float = 1) -> float:
    """Return the bytes of weights that a step of ``tokens`` tokens reads.

    Only experts to which a token is routed are read.
    """
    spec = spec_of(precision)
    # The output head counts, the input embedding does not.
    return (model.read_linear_parameters(tokens) * spec.linear_bits + model.head_parameters * spec.head_bits) / 8


def kv_bytes_per_token(model: Model, *, beyond_window: bool = False, kv: KvPrecision = "bf16") -> float:
    """Return the number of bytes by which one more token enlarges a KV cache.

    With ``beyond_window``, the layers that have an attention window are left out.
    """
    layers = model.global_layers if beyond_window else model.layers
    return 2 * layers * model.kv_heads * model.head_dim * _kv_value_bytes(kv)


def kv_bytes(model: Model, context: int, kv: KvPrecision = "bf16") -> float:
    whole("context", context)
    within = context if model.window is None else min(context, model.window)
    beyond = (context - within) * kv_bytes_per_token(model, beyond_window=True, kv=kv)
    return within * kv_bytes_per_token(model, kv=kv) + beyond


def prefill_flop(model: Model, tokens: int, *, cached: int = 0) -> float:
    """Return the FLOP to prefill ``tokens`` tokens of a prompt. The ``cached`` tokens before them need no prefill."""
    whole("tokens", tokens)
    whole("cached", cached)
    # 2 per linear parameter and token (Kaplan et al. 2020, section 2.1), 2 per parameter of the output head for the
    # last token only, and 4 x heads x head width for each pair of tokens in attention.
    linear = 2.0 * model.linear_parameters * tokens + (2.0 * model.head_parameters if tokens else 0.0)
    pairs = model.global_layers * attended_pairs(tokens, cached, None)
    pairs += model.local_layers * attended_pairs(tokens, cached, model.window)
    return linear + 4.0 * model.heads * model.head_dim * pairs


def attended_pairs(tokens: int, cached: int, window: int | None) -> float:
    """Return the number of token pairs in causal attention when ``tokens`` tokens are added after ``cached`` tokens.

    Each token attends to at most ``window`` tokens; None means no limit.
    """

    def upto(n: int) -> float:
        if window is None or n <= window:
            return n * n / 2
        return window * window / 2 + (n - window) * window

    return upto(cached + tokens) - upto(cached)


def prefill_ms(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    tokens: int,
    *,
    cached: int = 0,
    prompts: int = 1,
    efficiency: Efficiency = FLOOR,
) -> float:
    """Return the time of a step that prefills ``prompts`` prompts.

    Each prompt has ``tokens`` uncached tokens, and ``cached`` tokens that are in the KV cache.
    """
    whole("prompts", prompts, least=1)
    flop = prompts * prefill_flop(model, tokens, cached=cached)
    if not flop:
        return 0.0
    return step_ms(model, gpu, precision, prefill_flop=flop, prefill_tokens=prompts * tokens, efficiency=efficiency)


def decode_ms(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int = 1,
    context: int = 512,
    positions: int = 1,
    kv: KvPrecision = "bf16",
    efficiency: Efficiency = FLOOR,
) -> float:
    """Return the time of one decode step of ``batch`` sequences.

    ``context`` is the number of tokens in the KV cache of each sequence. ``positions`` is the number of tokens that the
    step verifies per sequence: 1 without speculative decoding.
    """
    whole("batch", batch, least=1)
    whole("positions", positions, least=1)
    return step_ms(
        model, gpu, precision, batch=batch, context=context, positions=positions, kv=kv, efficiency=efficiency
    )


def step_ms(  # noqa: PLR0913 - the time of a step depends on all of them
    model: Model,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int = 0,
    context: int = 0,
    positions: float = 1,
    prefill_flop: float = 0.0,
    prefill_tokens: int = 0,
    kv: KvPrecision = "bf16",
    efficiency: Efficiency,
) -> float:
    """Return the time of a step that decodes ``batch`` sequences and prefills ``prefill_tokens`` prompt tokens.

    ``positions`` is the number of tokens that the step computes for each decoded sequence.
    """
    tokens = batch * positions
    reading = read_ms(
        model, gpu, precision,
        batch=batch, context=context, tokens=tokens + prefill_tokens, kv=kv, efficiency=efficiency,
    )  # fmt: skip
    multiplying = tokens * token_flop(model, context) / (gpu.flops(precision) * efficiency.step_flops) * 1e3
    multiplying += prefill_flop / (gpu.flops(precision) * efficiency.flops) * 1e3
    fixed = (model.layers * efficiency.layer_us + tokens * efficiency.sequence_us) / 1e3
    shorter, longer = sorted((reading, multiplying))
    fixed += activations_ms(model, gpu, tokens + prefill_tokens, efficiency=efficiency)
    return fixed + longer + (1 - efficiency.overlap) * shorter


def read_ms(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int,
    context: int,
    tokens: float = 1,
    kv: KvPrecision = "bf16",
    efficiency: Efficiency = FLOOR,
) -> float:
    """Return the time to read the weights and the KV caches.

    There is one KV cache of ``context`` tokens for each of the ``batch`` sequences.

    ``tokens`` is the number of tokens in the step. It determines how many experts of a mixture are read.
    """
    spec = spec_of(precision)
    share = efficiency.bandwidth * (efficiency.int4_bandwidth if spec.unpacked else 1)
    linear = model.read_linear_parameters(tokens) * spec.linear_bits / 8 / share
    head = model.head_parameters * spec.head_bits / 8 / efficiency.bandwidth
    kv_share = efficiency.kv_bandwidth if model.heads == model.kv_heads else efficiency.grouped_kv_bandwidth
    caches = whole("batch", batch) * kv_bytes(model, context, kv) / kv_share
    return (linear + head + caches) / gpu.bandwidth * 1e3


def activations_ms(model: Model, gpu: Gpu, tokens: float, *, efficiency: Efficiency) -> float:
    size = tokens * model.layers * model.hidden * efficiency.activations * ACTIVATION_BYTES
    return size / (gpu.bandwidth * efficiency.bandwidth) * 1e3


def token_flop(model: Model, context: int) -> float:
    local = context if model.window is None else min(context, model.window)
    attended = model.global_layers * context + model.local_layers * local
    return 2.0 * (model.linear_parameters + model.head_parameters) + 4.0 * model.heads * model.head_dim * attended


def compute_bound_tokens(model: Model, gpu: Gpu, precision: Precision, *, efficiency: Efficiency = BATCHED) -> float:
    """Return the number of tokens per step above which multiplying takes longer than reading the weights."""
    reading = weight_bytes_read(model, precision) / (gpu.bandwidth * efficiency.bandwidth)
    per_token = 2.0 * model.linear_parameters / (gpu.flops(precision) * efficiency.flops)
    return reading / per_token


def require_fit(
    model: Model, gpu: Gpu, precision: Precision, *, batch: int = 1, context: int = 0, kv: KvPrecision = "bf16"
) -> None:
    """Require that the weights and KV caches fit into memory.

    Raises:
        ValueError: The weights and KV caches need more memory than the accelerator has.
    """
    need = weight_bytes(model, precision) + whole("batch", batch, least=1) * kv_bytes(model, context, kv)
    if need > gpu.memory_bytes:
        raise ValueError(
            f"{model.name} in {precision} needs {need / GIB:.1f} GiB for weights and {batch} x {context} cached "
            f"tokens; {gpu.name} has {gpu.memory_bytes / GIB:.0f} GiB"
        )


def largest_batch(model: Model, gpu: Gpu, precision: Precision, context: int, *, headroom: float = 0.9) -> int:
    """Return the maximum number of sequences that fit into memory together with the weights.

    ``context`` is the number of tokens of each sequence. ``headroom`` is the share of the memory that weights and KV
    caches may take.
    """
    positive("headroom", headroom)
    free = gpu.memory_bytes * headroom - weight_bytes(model, precision)
    per_sequence = kv_bytes(model, whole("context", context, least=1))
    return max(0, int(free // per_sequence))


def _kv_value_bytes(kv: str) -> float:
    found = KV_BYTES.get(kv)
    if found is None:
        raise ValueError(f"KV precision {kv!r} is not known; known are {', '.join(get_args(KvPrecision))}")
    return found
