"""Catalogue of accelerators. The rates are those of the makers' data sheets, without sparsity."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from services.physics.catalogue.precisions import PRECISIONS

TERA: Final = 1e12
GIGA: Final = 1e9
GIB: Final = 2.0**30
"""Bytes in a GiB. Memory is sold in GiB: a "16 GB" card has 16 x 2^30 bytes. Rates are in units of 10^9."""

Link = Literal["nvlink", "pcie"]

Generation = Literal["ampere", "ada", "hopper", "blackwell", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    Attributes:
        generation: Hardware generation. It selects the efficiency constants of an engine.
        bandwidth: Memory bandwidth in bytes per second.
        flops_bf16: BF16 rate with FP32 accumulation, in FLOP per second.
        flops_fp8: FP8 rate in FLOP per second; None if the hardware has no FP8 arithmetic.
        ops_int8: INT8 rate in operations per second; None if the hardware has no INT8 tensor cores.
        link: Link between the accelerators of a host.
        link_bandwidth: Bandwidth of this link per accelerator and direction, in bytes per second.
    """

    name: str
    generation: Generation
    memory_bytes: float
    bandwidth: float
    flops_bf16: float
    flops_fp8: float | None
    source: str
    ops_int8: float | None = None
    link: Link = "pcie"
    link_bandwidth: float = 32 * GIGA  # PCIe 4.0 x16

    def flops(self, precision: str) -> float:
        """Return the FLOP per second of multiplications with weights of this precision.

        If the hardware has no arithmetic in this precision, the result is the BF16 rate.
        """
        kind = PRECISIONS[precision].arithmetic if precision in PRECISIONS else "bf16"
        rate = {"fp8": self.flops_fp8, "int8": self.ops_int8}.get(kind)
        return self.flops_bf16 if rate is None else rate


# Data sheets give the rate of a link for both directions together. GeForce cards and L4 communicate over PCIe.
_ALL: Final = (
    Gpu(
        name="rtx-4080", generation="ada", memory_bytes=16 * GIB, bandwidth=716.8 * GIGA, flops_bf16=97.5 * TERA,
        flops_fp8=194.9 * TERA, source="NVIDIA Ada GPU architecture white paper, 2.02, appendix A (FP32 accumulate)",
        ops_int8=389.9 * TERA,
    ),
    Gpu(
        name="a100-40", generation="ampere", memory_bytes=40 * GIB, bandwidth=1_555 * GIGA, flops_bf16=312 * TERA,
        flops_fp8=None, source="NVIDIA A100 data sheet, 40GB SXM",
        ops_int8=624 * TERA, link="nvlink", link_bandwidth=300 * GIGA,
    ),
    Gpu(
        name="a100-80", generation="ampere", memory_bytes=80 * GIB, bandwidth=2_039 * GIGA, flops_bf16=312 * TERA,
        flops_fp8=None, source="NVIDIA A100 data sheet, 80GB SXM",
        ops_int8=624 * TERA, link="nvlink", link_bandwidth=300 * GIGA,
    ),
    Gpu(
        name="h100", generation="hopper", memory_bytes=80 * GIB, bandwidth=3.35 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H100 data sheet, SXM5; half of the rate with sparsity",
        ops_int8=1_978.9 * TERA, link="nvlink", link_bandwidth=450 * GIGA,
    ),
    Gpu(
        name="h200", generation="hopper", memory_bytes=141 * GIB, bandwidth=4.8 * TERA, flops_bf16=989.4 * TERA,
        flops_fp8=1_978.9 * TERA, source="NVIDIA H200 data sheet, SXM; half of the rate with sparsity",
        ops_int8=1_978.9 * TERA, link="nvlink", link_bandwidth=450 * GIGA,
    ),
    Gpu(
        name="b200", generation="blackwell", memory_bytes=180 * GIB, bandwidth=8 * TERA, flops_bf16=2_250 * TERA,
        flops_fp8=4_500 * TERA, source="NVIDIA DGX B200 data sheet, an eighth of the system; half of the sparse rate",
        ops_int8=4_500 * TERA, link="nvlink", link_bandwidth=900 * GIGA,
    ),
    Gpu(
        name="l4", generation="ada", memory_bytes=24 * GIB, bandwidth=300 * GIGA, flops_bf16=121 * TERA,
        flops_fp8=242.5 * TERA, source="NVIDIA L4 data sheet; half of the rate with sparsity",
        ops_int8=242.5 * TERA,
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
        ValueError: The name is not in the catalogue.
    """
    found = GPUS.get(name.lower())
    if found is None:
        raise ValueError(f"GPU {name!r} is not in the catalogue; it has {', '.join(GPUS)}")
    return found
