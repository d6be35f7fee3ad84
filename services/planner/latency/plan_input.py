"""The input of a latency plan, and its checks. Times are in milliseconds."""

from dataclasses import dataclass
from typing import Final

from services.physics.catalogue.gpus import GIB, Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.checks import fraction, not_negative, whole
from services.physics.efficiency import Engine, practical
from services.physics.pairing import SpeculationPair
from services.physics.roofline import KvPrecision, kv_bytes, weight_bytes

MAX_TOKENS: Final = 1_000_000
MAX_BATCH: Final = 4_096
MAX_MS: Final = 1e9


def _milliseconds(name: str, value: float) -> None:
    if not_negative(f"{name} (milliseconds)", value) > MAX_MS:
        raise ValueError(f"{name} (milliseconds) must be at most {MAX_MS:g}, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SurroundingLatency:
    """Latency outside the model, in milliseconds.

    Attributes:
        network: Round trip between client and edge.
        pre: Edge, Kafka and tokenizer before the engine.
        post: Detokenizing and bookkeeping of a chunk.
        response: Kafka and edge after the engine.
        rails: Input rails, which run during the queue and the prefill.
    """

    network: float = 20.0
    pre: float = 3.0
    post: float = 1.0
    response: float = 2.0
    rails: float = 20.0

    def __post_init__(self) -> None:
        for name in ("network", "pre", "post", "response", "rails"):
            _milliseconds(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """The input of a latency plan: one kind of request on one accelerator.

    Attributes:
        draft: Draft model; None without speculative decoding.
        precision: Precision of the linear layers of both models.
        kv: Precision of the KV caches of both models.
        alpha: Probability that a drafted token is accepted.
        prompt: Number of tokens of the prompt.
        cached: Number of prompt tokens that are in the prefix cache.
        output: Number of tokens of the answer.
        batch: Number of sequences that decode together.
        utilisation: Share of time in which the engine prefills the prompts of other requests.
        ttft_ms: Deadline for the first token.
        launch_ms: Time that each draft step takes in addition to the draft model's own time.
    """

    gpu: Gpu
    target: Model
    draft: Model | None
    precision: Precision = "fp8"
    kv: KvPrecision = "bf16"
    engine: Engine = "vllm"
    alpha: float = 0.8
    prompt: int = 512
    cached: int = 0
    output: int = 50
    batch: int = 1
    utilisation: float = 0.0
    ttft_ms: float = 200.0
    launch_ms: float = 0.0
    around: SurroundingLatency = SurroundingLatency()

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)
        for name, least, most in (
            ("prompt", 1, MAX_TOKENS), ("cached", 0, MAX_TOKENS), ("output", 1, MAX_TOKENS),
            ("batch", 1, MAX_BATCH),
        ):  # fmt: skip
            if whole(name, getattr(self, name), least=least) > most:
                raise ValueError(f"{name} must be at most {most}, not {getattr(self, name)}")
        if self.cached >= self.prompt:
            raise ValueError(f"cached must be below the prompt's {self.prompt} tokens, not {self.cached}")
        if not 0 <= self.utilisation < 1:
            raise ValueError(f"utilisation must be at least 0 and below 1, not {self.utilisation!r}")
        _milliseconds("ttft", self.ttft_ms)
        _milliseconds("launch", self.launch_ms)
        self._require_a_smaller_draft()
        self._require_memory()

    @property
    def context(self) -> int:
        """Number of tokens in the KV cache of a sequence halfway through the answer."""
        return self.prompt + self.output // 2

    @property
    def pair(self) -> SpeculationPair:
        """The target and the draft model. Without a draft model, the target is also the draft."""
        return SpeculationPair(
            target=self.target,
            draft=self.draft or self.target,
            gpu=self.gpu,
            precision=self.precision,
            kv=self.kv,
            efficiency=practical(self.gpu, self.engine),
            launch_ms=self.launch_ms,
        )

    def memory_bytes(self) -> float:
        models = (self.target,) if self.draft is None else (self.target, self.draft)
        cache = sum(kv_bytes(each, self.prompt + self.output, self.kv) for each in models) * self.batch
        return cache + sum(weight_bytes(each, self.precision) for each in models)

    def _require_a_smaller_draft(self) -> None:
        if self.draft is not None and self.draft.parameters >= self.target.parameters:
            raise ValueError(
                f"the draft {self.draft.name} has {self.draft.parameters / 1e9:.2f} B parameters, the target "
                f"{self.target.name} {self.target.parameters / 1e9:.2f} B: a draft must be smaller"
            )

    def _require_memory(self) -> None:
        need = self.memory_bytes()
        if need > self.gpu.memory_bytes:
            who = self.target.name if self.draft is None else f"{self.target.name} with {self.draft.name}"
            raise ValueError(
                f"{who} in {self.precision} needs {need / GIB:.1f} GiB for weights and the caches of {self.batch} x "
                f"{self.prompt + self.output} tokens; {self.gpu.name} has {self.gpu.memory_bytes / GIB:.0f} GiB: take "
                "a smaller model, precision or batch, or another GPU"
            )
