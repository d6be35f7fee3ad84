"""The catalogue of accelerators: dense rates, no sparsity, from the makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

TERA: Final = 1e12
GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: Name in the catalogue.
        memory_bytes: Capacity, in bytes (10^9 to the gigabyte).
        bandwidth: Memory bandwidth, in bytes per second.
        flops_bf16: Dense BF16 rate with FP32 accumulation, in FLOP per second.
        flops_fp8: Dense FP8 rate, in FLOP per second; None on hardware without FP8 arithmetic, where FP8 weights are
            converted to BF16 before they are multiplied.
        source: Source of the numbers.
    """

    name: str
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
        name="rtx-4080", memory_bytes=16 * GIGA, bandwidth=716.8 * GIGA, flops_bf16=97.5 * TERA,
        flops_fp8=194.9 * TERA, source="NVIDIA Ada GPU architecture white paper, 2.02, appendix A (FP32 accumulate)",
    ),
    Gpu(
        name="a100-40", memory_bytes=40 * GIGA, bandwidth=1_555 * GIGA, flops_bf16=312 * TERA, flops_fp8=None,
        source="NVIDIA A100 data sheet, 40GB SXM",
    ),
    Gpu(
        name="a100-80", memory_bytes=80 * GIGA, bandwidth=2_039 * GIGA, flops_bf16=312 * TERA, flops_fp8=None,
        source="NVIDIA A100 data sheet, 80GB SXM",
    ),
    Gpu(
        name="h100", memory_bytes=80 * GIGA, bandwidth=3.35 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H100 data sheet, SXM5; half of the rate with sparsity",
    ),
    Gpu(
        name="h200", memory_bytes=141 * GIGA, bandwidth=4.8 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H200 data sheet, SXM; half of the rate with sparsity",
    ),
    Gpu(
        name="b200", memory_bytes=180 * GIGA, bandwidth=8 * TERA, flops_bf16=2_250 * TERA,
        flops_fp8=4_500 * TERA, source="NVIDIA DGX B200 data sheet, an eighth of the system; half of the sparse rate",
    ),
    Gpu(
        name="cpu", memory_bytes=16 * GIGA, bandwidth=25.6 * GIGA, flops_bf16=0.1 * TERA, flops_fp8=None,
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
