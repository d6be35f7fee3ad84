"""The catalogue of accelerators: dense rates, no sparsity, from the makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

TERA: Final = 1e12
GIGA: Final = 1e9
GIB: Final = 2.0**30
"""Memory is sold in GiB: a "16 GB" card has 16 x 2^30 bytes. Rates are in 10^9."""

Generation = Literal["ampere", "ada", "hopper", "blackwell", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: Name in the catalogue.
        generation: Generation of the hardware, which decides what an engine achieves on it.
        memory_bytes: Capacity, in bytes (2^30 to the gigabyte of the name).
        bandwidth: Memory bandwidth, in bytes per second.
        flops_bf16: Dense BF16 rate with FP32 accumulation, in FLOP per second.
        flops_fp8: Dense FP8 rate, in FLOP per second; None on hardware without FP8 arithmetic, where FP8 weights are
            converted to BF16 before they are multiplied.
        source: Source of the numbers.
    """

    name: str
    generation: Generation
    memory_bytes: float
    bandwidth: float
    flops_bf16: float
    flops_fp8: float | None
    source: str

    def flops(self, precision: str) -> float:
        """Return the rate at which weights of this precision are multiplied, in FLOP per second."""
        if precision == "fp8" and self.flops_fp8 is not None:
            return self.flops_fp8
        return self.flops_bf16


_ALL: Final = (
    Gpu(
        name="rtx-4080", generation="ada", memory_bytes=16 * GIB, bandwidth=716.8 * GIGA, flops_bf16=97.5 * TERA,
        flops_fp8=194.9 * TERA, source="NVIDIA Ada GPU architecture white paper, 2.02, appendix A (FP32 accumulate)",
    ),
    Gpu(
        name="a100-40", generation="ampere", memory_bytes=40 * GIB, bandwidth=1_555 * GIGA, flops_bf16=312 * TERA,
        flops_fp8=None, source="NVIDIA A100 data sheet, 40GB SXM",
    ),
    Gpu(
        name="a100-80", generation="ampere", memory_bytes=80 * GIB, bandwidth=2_039 * GIGA, flops_bf16=312 * TERA,
        flops_fp8=None, source="NVIDIA A100 data sheet, 80GB SXM",
    ),
    Gpu(
        name="h100", generation="hopper", memory_bytes=80 * GIB, bandwidth=3.35 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H100 data sheet, SXM5; half of the rate with sparsity",
    ),
    Gpu(
        name="h200", generation="hopper", memory_bytes=141 * GIB, bandwidth=4.8 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H200 data sheet, SXM; half of the rate with sparsity",
    ),
    Gpu(
        name="b200", generation="blackwell", memory_bytes=180 * GIB, bandwidth=8 * TERA, flops_bf16=2_250 * TERA,
        flops_fp8=4_500 * TERA, source="NVIDIA DGX B200 data sheet, an eighth of the system; half of the sparse rate",
    ),
    Gpu(
        name="l4", generation="ada", memory_bytes=24 * GIB, bandwidth=300 * GIGA, flops_bf16=121 * TERA,
        flops_fp8=242.5 * TERA, source="NVIDIA L4 data sheet; half of the rate with sparsity",
    ),
    Gpu(
        name="cpu", generation="cpu", memory_bytes=16 * GIB, bandwidth=25.6 * GIGA, flops_bf16=0.1 * TERA,
        flops_fp8=None,
        source="one DDR4-3200 channel and one AVX2 core at 3.1 GHz: a start for calibration, not a real machine",
    ),
)  # fmt: skip

GPUS: Final[Mapping[str, Gpu]] = MappingProxyType({gpu.name: gpu for gpu in _ALL})


def gpu(name: str) -> Gpu:
    """Return the accelerator with this name.

    Raises:
        ValueError: It is not in the catalogue; the message names those that are.
    """
    found = GPUS.get(name.lower())
    if found is None:
        raise ValueError(f"GPU {name!r} is not in the catalogue; it has {', '.join(GPUS)}")
    return found
