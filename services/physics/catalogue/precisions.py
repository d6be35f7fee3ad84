"""Catalogue of weight precisions: bits per weight, number format of the computation, and loss of quality."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

Precision = Literal["bf16", "fp8", "int8", "int4", "q4_k_m", "q3_k_s", "q2_k"]

Arithmetic = Literal["bf16", "fp8", "int8"]

_MMLU: Final = "MMLU of Llama 3 8B Instruct, matt-c1/llama-3-quant-comparison, 2024"
_BITS: Final = "llama.cpp, `llama-quantize --help`: size of Llama 3 8B over its 8.03 B weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec:
    """One precision of a model's weights.

    Attributes:
        linear_bits: Bits per weight of the linear layers.
        head_bits: Bits per weight of the embedding and the output head.
        arithmetic: Precision of the multiplication.
        unpacked: Whether weights must be unpacked before the multiplication.
        lost_points: MMLU points that a model of 8 B parameters loses against BF16.
        note: A few words about the loss of quality, such as ``small loss``.
    """

    name: Precision
    linear_bits: float
    head_bits: float
    arithmetic: Arithmetic
    unpacked: bool
    lost_points: float
    note: str
    source: str


_ALL: Final = (
    PrecisionSpec(
        name="bf16", linear_bits=16, head_bits=16, arithmetic="bf16", unpacked=False, lost_points=0.0,
        note="as published", source=_MMLU,
    ),
    PrecisionSpec(
        name="fp8", linear_bits=8, head_bits=16, arithmetic="fp8", unpacked=False, lost_points=0.1,
        note="no loss seen", source="lost points: as Q8_0 and within the noise of MMLU; not measured",
    ),
    PrecisionSpec(
        name="int8", linear_bits=8, head_bits=16, arithmetic="int8", unpacked=False, lost_points=0.7,
        note="small loss", source=f"{_MMLU}: 8 bit in transformers, 64.53 against 65.20",
    ),
    PrecisionSpec(
        name="int4", linear_bits=4 + 16 / 128, head_bits=16, arithmetic="bf16", unpacked=True, lost_points=1.8,
        note="small loss", source=f"one 16-bit scale per group of 128; {_MMLU}: nf4, 63.42 against 65.20",
    ),
    PrecisionSpec(
        name="q4_k_m", linear_bits=4.90, head_bits=4.90, arithmetic="bf16", unpacked=True, lost_points=0.6,
        note="small loss", source=f"{_BITS}, 4.58 GiB; {_MMLU}: 64.64 against 65.20",
    ),
    PrecisionSpec(
        name="q3_k_s", linear_bits=3.65, head_bits=3.65, arithmetic="bf16", unpacked=True, lost_points=6.1,
        note="clear loss", source=f"{_BITS}, 3.41 GiB; {_MMLU}: 59.14 against 65.20",
    ),
    PrecisionSpec(
        name="q2_k", linear_bits=3.17, head_bits=3.17, arithmetic="bf16", unpacked=True, lost_points=9.3,
        note="heavy loss", source=f"{_BITS}, 2.96 GiB; {_MMLU}: 55.90 against 65.20",
    ),
)  # fmt: skip

PRECISIONS: Final[Mapping[str, PrecisionSpec]] = MappingProxyType({spec.name: spec for spec in _ALL})

GGUF: Final = tuple(spec.name for spec in _ALL if spec.name.startswith("q"))
"""The precisions of llama.cpp's GGUF files. vLLM and TensorRT-LLM use the other precisions."""


def precision(name: str) -> PrecisionSpec:
    """Return the weight precision with this name.

    Raises:
        ValueError: The name is not in the catalogue.
    """
    found = PRECISIONS.get(name)
    if found is None:
        raise ValueError(f"precision {name!r} is not known; known are {', '.join(get_args(Precision))}")
    return found
