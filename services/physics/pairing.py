"""Compute when speculative decoding saves time, for a target and a draft model on one accelerator."""

from dataclasses import dataclass

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import Efficiency, practical
from services.physics.roofline import KvPrecision, decode_ms
from services.physics.speculation import MAX_GAMMA, OVERHEAD, speedup_in_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPair:
    """A target model and a draft model on one accelerator.

    Attributes:
        precision: Weight precision of both models.
        kv: Precision of the KV caches of both models.
        efficiency: Constants of the engine; None means those of vLLM.
        overhead: Extra time of a draft-and-verify cycle, divided by the time of a plain target step.
        launch_ms: Time that each draft step takes in addition to the draft model's own time, in milliseconds.
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
        return practical(self.gpu) if self.efficiency is None else self.efficiency

    def step_ms(self, *, batch: int = 1, context: int = 512, positions: int = 1) -> float:
        """Return the time of one step of the target, with ``positions`` tokens for each of ``batch`` sequences."""
        return decode_ms(
            self.target, self.gpu, self.precision,
            batch=batch, context=context, positions=positions, kv=self.kv, efficiency=self.achieved,
        )  # fmt: skip

    def draft_ms(self, *, batch: int = 1, context: int = 512) -> float:
        step = decode_ms(
            self.draft, self.gpu, self.precision,
            batch=batch, context=context, kv=self.kv, efficiency=self.achieved,
        )  # fmt: skip
        return step + self.launch_ms

    def draft_cost(self, *, batch: int = 1, context: int = 512) -> float:
        """Return the time of a draft step divided by the time of a plain target step."""
        return self.draft_ms(batch=batch, context=context) / self.step_ms(batch=batch, context=context)

    def cycle_ms(self, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Return the time of ``gamma`` draft steps, the verify step and the overhead.

        If ``gamma`` is 0, return the time of a plain target step.
        """
        plain = self.step_ms(batch=batch, context=context)
        if gamma == 0:
            return plain
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        return gamma * self.draft_ms(batch=batch, context=context) + verify + self.overhead * plain

    def speedup(self, alpha: float, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Return the tokens per second with speculative decoding, divided by the tokens per second without it.

        ``alpha`` is the probability that a drafted token is accepted, ``gamma`` the number of drafted tokens per step.
        """
        plain = self.step_ms(batch=batch, context=context)
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        cost = self.draft_ms(batch=batch, context=context) / plain
        return speedup_in_batch(alpha, gamma, cost, verify_cost=verify / plain, overhead=self.overhead)

    def best_gamma(
        self, alpha: float, *, batch: int = 1, context: int = 512, max_gamma: int = MAX_GAMMA
    ) -> tuple[int, float]:
        """Return the best number of tokens to draft (gamma), and its speed-up; 0 and 1.0 if drafting saves no time."""
        return max(
            ((gamma, self.speedup(alpha, gamma, batch=batch, context=context)) for gamma in range(max_gamma + 1)),
            key=lambda choice: choice[1],
        )

    def pays_until(self, alpha: float, gamma: int, *, context: int = 512, max_batch: int = 1_024) -> int:
        """Return the batch size (number of sequences) up to which drafting ``gamma`` tokens saves time.

        The result is at most ``max_batch``. It is 0 if drafting does not save time for a single sequence.
        """
        # At much larger batches, drafting could save time again, because reading the KV caches may take longer than
        # multiplying again. Such batches seldom fit into memory.
        for batch in range(1, max_batch + 1):
            if self.speedup(alpha, gamma, batch=batch, context=context) <= 1:
                return batch - 1
        return max_batch
