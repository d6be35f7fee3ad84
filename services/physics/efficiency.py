"""Efficiency constants of engines.

The constants say which share of a data sheet's rates an engine reaches, and how much fixed time each layer and each
token add to a step of the engine.

The constants are fitted to the published measurements in ``tests/data/published`` (TensorRT-LLM 0.9 and NVIDIA NIM).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final, Literal, get_args

from services.physics.catalogue.gpus import Gpu
from services.physics.checks import not_negative

Engine = Literal["vllm", "nim", "tensorrt-llm", "llama.cpp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The share of a data sheet's rates that an engine reaches, and the fixed times in each step of the engine.

    Attributes:
        flops: Share of the arithmetic rate, in prefill.
        step_flops: Share of the arithmetic rate, in decode and verify steps.
        bandwidth: Share of the memory bandwidth, for weights and activations.
        int4_bandwidth: Share of ``bandwidth`` that the engine reaches for packed weights. The weights of int4 and of
            the GGUF precisions, such as ``q4_k_m``, are packed.
        kv_bandwidth: Share of the memory bandwidth, for KV caches of multi-head attention.
        grouped_kv_bandwidth: Share of the memory bandwidth, for KV caches of grouped-query attention.
        overlap: Overlap of memory reads and arithmetic: 0 means one after the other, 1 means at the same time.
        layer_us: Fixed time of each layer in a step, in microseconds.
        sequence_us: Fixed time of each decoded or verified token in a step, in microseconds.
        activations: Activations per token that a layer reads and writes, divided by the model's width.
    """

    flops: float
    step_flops: float
    bandwidth: float
    int4_bandwidth: float = 1.0
    kv_bandwidth: float
    grouped_kv_bandwidth: float
    overlap: float
    layer_us: float
    sequence_us: float
    activations: float

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in {"layer_us", "sequence_us", "activations"}:
                not_negative(each.name, value)
            elif not (0 if each.name == "overlap" else 1e-9) <= value <= 1:
                raise ValueError(f"efficiency of {each.name} must be above 0 and at most 1, not {value!r}")


FLOOR: Final = Efficiency(
    flops=1.0, step_flops=1.0, bandwidth=1.0, kv_bandwidth=1.0, grouped_kv_bandwidth=1.0, overlap=1.0, layer_us=0.0,
    sequence_us=0.0, activations=0.0,
)  # fmt: skip
"""The lower bound for any engine: the roofline of the data sheet."""

BATCHED: Final = replace(
    FLOOR, flops=0.50, step_flops=0.50, bandwidth=0.75, kv_bandwidth=0.75, grouped_kv_bandwidth=0.75
)
"""A plain roofline at half of the arithmetic rate and three quarters of the memory rate, for drawings."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: float
    low: float
    high: float
    source: str


_T: Final = "TensorRT-LLM 0.9, static batches (T)"
_TN: Final = "TensorRT-LLM 0.9, static batches (T); NIM, closed loops (N)"

# The interval of a fitted constant is the range of its values in repeated fits, each without one source, GPU or model.
COMMON: Final[Mapping[str, Constant]] = MappingProxyType(
    {
        "bandwidth": Constant(0.92, 0.78, 1.0, _TN),
        "int4_bandwidth": Constant(0.70, 0.55, 0.90, "one ratio: BF16 / int4 = 1.76 (A100, vLLM 0.6.3)"),
        "kv_bandwidth": Constant(0.95, 0.85, 1.0, f"{_T}: Llama 2 7B and 13B"),
        "grouped_kv_bandwidth": Constant(0.55, 0.45, 0.76, f"{_TN}: Llama 2 70B and Llama 3 8B"),
        "overlap": Constant(0.30, 0.2, 0.45, _TN),
        "activations": Constant(40.0, 30.0, 77.0, f"{_T}: prefill; counting the kernels of a layer gives about 30"),
    }
)
"""Constants that have the same value for all GPU generations and engines in the data."""

GENERATIONS: Final[Mapping[str, Mapping[str, Constant]]] = MappingProxyType(
    {
        "ampere": {"flops": Constant(0.80, 0.65, 0.91, _TN), "layer_us": Constant(115.0, 105.0, 150.0, _TN)},
        "hopper": {"flops": Constant(0.74, 0.60, 0.82, _TN), "layer_us": Constant(72.0, 65.0, 94.0, _TN)},
        "ada": {
            "flops": Constant(0.74, 0.50, 0.85, "as hopper; not measured"),
            "layer_us": Constant(72.0, 40.0, 120.0, "as hopper; not measured"),
        },
        "blackwell": {
            "flops": Constant(0.74, 0.45, 0.80, "as hopper; not measured"),
            "layer_us": Constant(72.0, 40.0, 94.0, "as hopper; not measured"),
        },
        "cpu": {
            "flops": Constant(0.43, 0.1, 1.0, "not measured: calibrate"),
            "layer_us": Constant(20.0, 0.0, 200.0, "not measured: calibrate"),
        },
    }
)  # fmt: skip
"""Constants by GPU generation."""

SEQUENCE_US: Final[Mapping[Engine, Constant]] = MappingProxyType(
    {
        "vllm": Constant(30.0, 8.0, 50.0, "as nim; no row of its own"),
        "nim": Constant(30.0, 8.0, 35.0, "NIM, closed loops over HTTP (N)"),
        "tensorrt-llm": Constant(0.0, 0.0, 10.0, _T),
        "llama.cpp": Constant(0.0, 0.0, 30.0, "as tensorrt-llm; no row of its own"),
    }
)
"""Time that each sequence adds to a step, in microseconds, by engine."""

LLAMA_CPP_STEP_FLOPS: Final = Constant(
    0.065, 0.05, 0.09, "verifying 4 and 8 tokens took 1.28 and 1.72 plain steps: llama.cpp, A100, 34B Q8_0"
)
"""``step_flops`` of llama.cpp. Its kernels for narrow matrices do not use the tensor cores well."""


def practical(gpu: Gpu, engine: Engine = "vllm") -> Efficiency:
    """Return the efficiency constants of the engine on this GPU.

    Raises:
        ValueError: The engine is not known.
    """
    if engine not in SEQUENCE_US:
        raise ValueError(f"engine {engine!r} is not known; known are {', '.join(get_args(Engine))}")
    values = {name: constant.value for name, constant in (*COMMON.items(), *GENERATIONS[gpu.generation].items())}
    found = Efficiency(**values, step_flops=values["flops"], sequence_us=SEQUENCE_US[engine].value)
    if gpu.generation == "cpu":  # one thread reads and multiplies in turn, and keeps activations in its cache
        plain = found.bandwidth
        return replace(
            found, overlap=0.0, sequence_us=0.0, activations=0.0, int4_bandwidth=1.0, kv_bandwidth=plain,
            grouped_kv_bandwidth=plain,
        )  # fmt: skip
    return replace(found, step_flops=LLAMA_CPP_STEP_FLOPS.value) if engine == "llama.cpp" else found


def variants(gpu: Gpu, engine: Engine = "vllm") -> tuple[tuple[Efficiency, Efficiency], ...]:
    """Return one pair of efficiencies for each uncertain field of ``Efficiency``.

    In the first efficiency of a pair, the field has its lowest plausible value; in the second, its highest plausible
    value. All other fields are those of ``practical(gpu, engine)``. The pairs serve to estimate the error of a
    prediction.
    """
    usual = practical(gpu, engine)
    if gpu.generation == "cpu":
        constants = dict(GENERATIONS["cpu"])
    else:
        constants = {**COMMON, **GENERATIONS[gpu.generation], "sequence_us": SEQUENCE_US[engine]}
    found = [
        (replace(usual, **{name: each.low}), replace(usual, **{name: each.high})) for name, each in constants.items()
    ]
    if engine == "llama.cpp":
        steps = LLAMA_CPP_STEP_FLOPS
        found.append((replace(usual, step_flops=steps.low), replace(usual, step_flops=steps.high)))
    elif "flops" in constants:  # ``step_flops`` is the same constant
        flops = constants["flops"]
        found.append((replace(usual, step_flops=flops.low), replace(usual, step_flops=flops.high)))
    return tuple(found)
