"""Tensor, pipeline and data parallelism: their effect on memory and speed, and the cost of communication.

Sources: Shoeybi et al., "Megatron-LM", 2019 (tensor parallelism), and Huang et al., "GPipe", 2019 (pipelines).
"""

from dataclasses import dataclass, replace
from typing import Final

from services.physics.catalogue.gpus import Gpu, Link
from services.physics.catalogue.models import Model
from services.physics.checks import whole
from services.physics.efficiency import Constant
from services.physics.roofline import ACTIVATION_BYTES

ALL_REDUCE_US: Final[dict[Link, Constant]] = {
    "nvlink": Constant(10.0, 6.0, 20.0, "one small all-reduce of vLLM's own kernel over NVLink; approximate"),
    "pcie": Constant(40.0, 25.0, 90.0, "the same through NCCL over PCIe without peer access; approximate"),
}
"""Time of an all-reduce of a few kilobytes: launches and synchronisation. No published row contains an all-reduce."""

LINK_SHARE: Final = Constant(0.75, 0.5, 0.85, "all-reduce of large messages: 366 of 450 GB/s on four H100")
"""Share of a link's rate that a large all-reduce reaches."""

PIPELINE_BALANCE: Final = Constant(0.9, 0.75, 1.0, "stages of unequal time wait for the slowest; not measured")
"""Share of time in which the stages of a pipeline are busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is spread over accelerators.

    ``replicas`` is the number of engines, ``pipeline`` the number of stages of an engine, and ``tensor`` the number of
    accelerators of a stage.
    """

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "replicas"):
            whole(name, getattr(self, name), least=1)

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.replicas

    def __str__(self) -> str:
        parts = (("data", self.replicas), ("tensor", self.tensor), ("pipeline", self.pipeline))
        return " x ".join(f"{name} {count}" for name, count in parts if count > 1) or "one"


ONE: Final = Layout()


def group(gpu: Gpu, layout: Layout) -> Gpu:
    """Return one ``Gpu`` that stands for all accelerators of one engine.

    Its memory is the sum over all accelerators. Its rates are the sum over one pipeline stage only, because a token
    passes through the stages one after the other.
    """
    n = layout.tensor
    return replace(
        gpu,
        memory_bytes=gpu.memory_bytes * n * layout.pipeline,
        bandwidth=gpu.bandwidth * n,
        flops_bf16=gpu.flops_bf16 * n,
        flops_fp8=None if gpu.flops_fp8 is None else gpu.flops_fp8 * n,
        ops_int8=None if gpu.ops_int8 is None else gpu.ops_int8 * n,
    )


def divided(model: Model, layout: Layout) -> Model:
    """Return ``model`` with at least one KV head for each accelerator of a pipeline stage.

    If a stage has more accelerators than KV heads, it stores some KV heads several times, and each copy counts as a KV
    head.

    Raises:
        ValueError: The query heads cannot be divided evenly among the accelerators of a stage, or there are fewer
            layers than pipeline stages.
    """
    if model.heads % layout.tensor:
        raise ValueError(f"{model.name} has {model.heads} heads, which {layout.tensor} GPUs cannot divide evenly")
    if layout.pipeline > model.layers:
        raise ValueError(f"{model.name} has {model.layers} layers, fewer than {layout.pipeline} stages")
    # With more accelerators than KV heads, KV heads are stored several times.
    return replace(model, kv_heads=max(model.kv_heads, layout.tensor)) if layout.tensor > 1 else model


def communication_ms(
    model: Model, gpu: Gpu, layout: Layout, tokens: float, *, latency_us: float | None = None,
    link_share: float = LINK_SHARE.value,
) -> float:  # fmt: skip
    """Return the time that a step of ``tokens`` tokens spends in communication between accelerators.

    ``latency_us`` is the time of a small all-reduce; None means the default for NVLink or PCIe.
    """
    message = tokens * model.hidden * ACTIVATION_BYTES
    rate = gpu.link_bandwidth * link_share
    start = (ALL_REDUCE_US[gpu.link].value if latency_us is None else latency_us) / 1e3
    n, sends = layout.tensor, layout.pipeline - 1
    # An all-reduce of m bytes sends 2 (n - 1) / n x m bytes over the link (Patarasuk and Yuan 2009).
    reduces = 2 * model.layers if n > 1 else 0
    each = start + 2 * (n - 1) / n * message / rate * 1e3
    return reduces * each + sends * (start + message / rate * 1e3)
