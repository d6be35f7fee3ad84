"""Compute for which gamma and batch sizes drafting saves time, for a target and a draft model on one accelerator."""

from dataclasses import dataclass

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import Efficiency, practical
from services.physics.roofline import KvPrecision, decode_ms
from services.physics.speculation import MAX_GAMMA, OVERHEAD, speedup_in_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPair:
    """A target model, its draft model and the accelerator.

    Attributes:
        target: Target model.
        draft: Draft model.
        gpu: Accelerator that runs both.
        precision: Precision of both models' linear layers.
        kv: Precision of both models' KV caches.
        efficiency: Constants of the engine; those of ``vllm`` on this accelerator if None.
        overhead: Overhead of one cycle, divided by the time of a plain target step at the same batch.
        launch_ms: Time of a draft step in addition to the computed time of the draft model, in milliseconds.
    """

    target: Model
    draft: Model
    gpu: Gpu
    precision: Precision = "fp8"
    kv: KvPrecision = "bf16"
    efficiency: Efficiency | None = None
    overhead: float = OVERHEAD
    launch_ms: float = 0.0

    @property
    def achieved(self) -> Efficiency:
        """The constants of the engine."""
        return practical(self.gpu) if self.efficiency is None else self.efficiency

    def step_ms(self, *, batch: int = 1, context: int = 512, positions: int = 1) -> float:
        """Return the milliseconds of one step of the target."""
        return decode_ms(
            self.target, self.gpu, self.precision,
            batch=batch, context=context, positions=positions, kv=self.kv, efficiency=self.achieved,
        )  # fmt: skip

    def draft_ms(self, *, batch: int = 1, context: int = 512) -> float:
        """Return the milliseconds of one draft step."""
        step = decode_ms(
            self.draft, self.gpu, self.precision,
            batch=batch, context=context, kv=self.kv, efficiency=self.achieved,
        )  # fmt: skip
        return step + self.launch_ms

    def draft_cost(self, *, batch: int = 1, context: int = 512) -> float:
        """Return c, the time of a draft step divided by that of a plain target step."""
        return self.draft_ms(batch=batch, context=context) / self.step_ms(batch=batch, context=context)

    def cycle_ms(self, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Return the milliseconds of gamma draft steps, a verify step and overhead; a plain step for gamma 0."""
        plain = self.step_ms(batch=batch, context=context)
        if gamma == 0:
            return plain
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        return gamma * self.draft_ms(batch=batch, context=context) + verify + self.overhead * plain

    def speedup(self, alpha: float, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Return the tokens per second with speculation divided by those without it, at this batch size."""
        plain = self.step_ms(batch=batch, context=context)
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        cost = self.draft_ms(batch=batch, context=context) / plain
        return speedup_in_batch(alpha, gamma, cost, verify_cost=verify / plain, overhead=self.overhead)

    def best_gamma(
        self, alpha: float, *, batch: int = 1, context: int = 512, most: int = MAX_GAMMA
    ) -> tuple[int, float]:
        """Return the gamma with the largest speed-up at this batch size, and the speed-up; 0 and 1.0 without a gain."""
        return max(
            ((gamma, self.speedup(alpha, gamma, batch=batch, context=context)) for gamma in range(most + 1)),
            key=lambda choice: choice[1],
        )

    def pays_until(self, alpha: float, gamma: int, *, context: int = 512, most: int = 1_024) -> int:
        """Return the largest batch up to which drafting gamma tokens is faster than drafting none; 0 if it never is.

        The first batch with a speed-up of at most 1 ends the search. (At much larger batches drafting could save
        time again, because reading the KV caches may again take longer than multiplying. Such batches seldom fit into
        memory.)
        """
        for batch in range(1, most + 1):
            if self.speedup(alpha, gamma, batch=batch, context=context) <= 1:
                return batch - 1
        return most
