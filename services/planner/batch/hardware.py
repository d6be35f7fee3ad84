"""Estimate the time of a batch job on owned or rented accelerators."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from services.physics.batches import BatchLimits, BatchWork, Throughput, batch_kv, throughput
from services.physics.catalogue.gpus import GPUS, Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import GGUF, PRECISIONS, Precision
from services.physics.efficiency import Efficiency, Engine, practical, variants
from services.physics.pairing import SpeculationPair
from services.physics.parallel import ALL_REDUCE_US, LINK_SHARE, ONE, PIPELINE_BALANCE, Layout
from services.physics.roofline import KvPrecision, weight_bytes
from services.planner.batch.ways import Range, exactly, spread

SEQUENCES: Final[dict[Engine, int]] = {"vllm": 256, "llama.cpp": 32, "nim": 256, "tensorrt-llm": 256}
"""Maximum number of sequences that decode together. The defaults of Railbus are lower, so the report names the settings
of vLLM."""

LITTLE_LOSS: Final = 2.0
"""Maximum number of score points that a precision may lose if the plan chooses the precision by itself."""

MAX_GAMMA: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on accelerators, and the settings of the engine that runs it.

    Attributes:
        layout: Number of accelerators, and their division into engines and pipeline stages.
        sequences: Maximum number of sequences that decode together; None means the default of the engine.
        alpha: Probability that a drafted token is accepted.
        kv: Precision of the KV caches; None means ``batch_kv(gpu)``.
    """

    model: Model
    gpu: Gpu
    precision: Precision
    layout: Layout = ONE
    sequences: int | None = None
    draft: Model | None = None
    alpha: float = 0.7
    kv: KvPrecision | None = None

    @property
    def engine(self) -> Engine:
        """The engine that runs the model: ``llama.cpp`` for the precisions of GGUF files, else ``vllm``."""
        return "llama.cpp" if self.precision in GGUF else "vllm"

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(
            sequences=SEQUENCES[self.engine] if self.sequences is None else self.sequences,
            reserved_bytes=0.0 if self.draft is None else weight_bytes(self.draft, self.precision),
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    hours: Range
    usual: Throughput
    gamma: int
    speedup: float
    factor: float = 1.0

    @property
    def why(self) -> str:
        whole = self.usual.prefill_s + self.usual.decode_s
        drafted = f", gamma {self.gamma} x{self.speedup:.2f}" if self.gamma else ""
        sampled = f", by the sample x{self.factor:.2f}" if self.factor != 1 else ""
        return f"batch {self.usual.batch}, prefill {self.usual.prefill_s / whole:.0%}{drafted}{sampled}"


def estimate(deployment: Deployment, work: BatchWork, factors: Mapping[str, float] = MappingProxyType({})) -> Estimate:
    """Estimate the hours that a job takes, as an interval.

    The predicted hours are multiplied by ``factors[NAME]``, where NAME is the name of the accelerator. The factors come
    from measurements. Without an entry, the factor is 1.

    Raises:
        ValueError: The model or batch does not fit into memory.
    """
    usual = _run(deployment, work, practical(deployment.gpu, deployment.engine), deployment.limits)
    hours, (gamma, speedup) = _hours(deployment, work, usual), _speculation(deployment, work, usual)

    def again(efficiency: Efficiency | None = None, **limits: float) -> float:
        chosen = practical(deployment.gpu, deployment.engine) if efficiency is None else efficiency
        return _hours(deployment, work, _run(deployment, work, chosen, replace(deployment.limits, **limits)))  # type: ignore[arg-type]

    pairs = [(again(low), again(high)) for low, high in variants(deployment.gpu, deployment.engine)]
    if deployment.layout.tensor > 1 or deployment.layout.pipeline > 1:
        waits = ALL_REDUCE_US[deployment.gpu.link]
        pairs.append((again(all_reduce_us=waits.low), again(all_reduce_us=waits.high)))
        pairs.append((again(link_share=LINK_SHARE.low), again(link_share=LINK_SHARE.high)))
    if deployment.layout.pipeline > 1:
        pairs.append((again(balance=PIPELINE_BALANCE.low), again(balance=PIPELINE_BALANCE.high)))
    factor = factors.get(deployment.gpu.name, 1.0)
    return Estimate(spread(hours, pairs).times(factor), usual, gamma, speedup, factor)


def sample_factor(deployment: Deployment, work: BatchWork, at_once: int, hours: float) -> float:
    """Return the ratio of ``hours`` to the time that the performance model predicts for the job.

    ``hours`` is the time of the job according to a sample. ``at_once`` is the number of concurrent requests.

    Raises:
        ValueError: The model or batch does not fit into memory.
    """
    like = replace(deployment, sequences=at_once)
    return hours / _run(like, work, practical(like.gpu, like.engine), like.limits).hours


def _run(deployment: Deployment, work: BatchWork, efficiency: Efficiency, limits: BatchLimits) -> Throughput:
    return throughput(
        deployment.model, deployment.gpu, deployment.precision, work,
        layout=deployment.layout, limits=limits, efficiency=efficiency, kv=deployment.kv,
    )  # fmt: skip


def _hours(deployment: Deployment, work: BatchWork, found: Throughput) -> float:
    _, speedup = _speculation(deployment, work, found)
    return work.requests * (found.prefill_s + found.decode_s / speedup) / 3_600


def _speculation(deployment: Deployment, work: BatchWork, found: Throughput) -> tuple[int, float]:
    if deployment.draft is None:
        return 0, 1.0
    pair = SpeculationPair(
        target=deployment.model, draft=deployment.draft, gpu=deployment.gpu, precision=deployment.precision,
        kv=deployment.kv or batch_kv(deployment.gpu), efficiency=practical(deployment.gpu, deployment.engine),
    )  # fmt: skip
    context = work.shared + work.own + work.output // 2
    return pair.best_gamma(deployment.alpha, batch=found.batch, context=context, max_gamma=MAX_GAMMA)


@lru_cache(maxsize=1_024)
def fastest_precision(model: Model, gpu: Gpu, layout: Layout, work: BatchWork) -> Precision:
    """Return the allowed weight precision with which vLLM runs the job fastest.

    A precision is allowed if it loses at most ``LITTLE_LOSS`` score points against BF16.

    Raises:
        ValueError: The model or batch does not fit into memory in any allowed precision.
    """
    found: list[tuple[float, Precision]] = []
    refused: ValueError | None = None
    for spec in PRECISIONS.values():
        deployment = Deployment(model=model, gpu=gpu, precision=spec.name, layout=layout)
        if spec.lost_points > LITTLE_LOSS or deployment.engine != "vllm":
            continue
        try:
            found.append((_run(deployment, work, practical(gpu), deployment.limits).hours, spec.name))
        except ValueError as error:
            refused = error
    if not found:
        raise refused or AssertionError("some precision has little loss")
    return min(found)[1]


def layouts(count: int) -> Iterator[Layout]:
    if count == 1:
        yield ONE
        return
    yield Layout(replicas=count)
    yield Layout(tensor=count)
    yield Layout(pipeline=count)


def what_would_fit(model: Model, gpu: Gpu, work: BatchWork) -> str:
    """Return a text that says in which precisions the model fits on one GPU of this type.

    If no precision fits, the text names other accelerators on which the model fits in int4, or the number of GPUs of
    this type to split the model over. If there are none of these, the text advises a smaller model.
    """
    here = [
        spec.name for spec in PRECISIONS.values() if _fits(Deployment(model=model, gpu=gpu, precision=spec.name), work)
    ]
    if here:
        return f"on {gpu.name} it fits in {', '.join(here)}"
    others = [
        each.name
        for each in GPUS.values()
        if each.generation != "cpu" and _fits(Deployment(model=model, gpu=each, precision="int4"), work)
    ]
    split = next(
        (
            count
            for count in (2, 4, 8)
            if _fits(Deployment(model=model, gpu=gpu, precision="int4", layout=Layout(tensor=count)), work)
        ),
        None,
    )
    parts = [f"in int4 it fits on {', '.join(others)}"] if others else []
    parts += [f"on {split} x {gpu.name} (tensor parallel)"] if split else []
    return "; or ".join(parts) or "no accelerator of the catalogue holds it: take a smaller model"


def _fits(deployment: Deployment, work: BatchWork) -> bool:
    try:
        _run(deployment, work, practical(deployment.gpu, deployment.engine), deployment.limits)
    except ValueError:
        return False
    return True


def with_setup(hours: Range, minutes: float) -> Range:
    return hours.plus(exactly(minutes / 60))
