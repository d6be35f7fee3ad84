"""A target and its draft on one accelerator: when drafting pays, and until which batch."""

from dataclasses import dataclass

from services.physics.gpus import Gpu
from services.physics.models import Model
from services.physics.roofline import PRACTICAL, Efficiency, Precision, decode_ms
from services.physics.speculation import MOST_DRAFTED, OVERHEAD, speedup_in_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What verifies, what drafts, and on what.

    Attributes:
        target: The model that answers.
        draft: The model that proposes.
        gpu: Runs both.
        precision: Of both models' linear layers.
        efficiency: Of the paper rates.
        overhead: Of one cycle, over the time of a plain target step at the same batch.
        launch_ms: Time of a draft step beyond its bytes (kernel launches), in milliseconds.
    """

    target: Model
    draft: Model
    gpu: Gpu
    precision: Precision = "fp8"
    efficiency: Efficiency = PRACTICAL
    overhead: float = OVERHEAD
    launch_ms: float = 0.0

    def step_ms(self, *, batch: int = 1, context: int = 512, positions: int = 1) -> float:
        """Milliseconds of one step of the target."""
        return decode_ms(
            self.target, self.gpu, self.precision,
            batch=batch, context=context, positions=positions, efficiency=self.efficiency,
        )  # fmt: skip

    def draft_ms(self, *, batch: int = 1, context: int = 512) -> float:
        """Milliseconds of one step of the draft."""
        step = decode_ms(self.draft, self.gpu, self.precision, batch=batch, context=context, efficiency=self.efficiency)
        return step + self.launch_ms

    def draft_cost(self, *, batch: int = 1, context: int = 512) -> float:
        """c: a draft step's time over a plain target step's."""
        return self.draft_ms(batch=batch, context=context) / self.step_ms(batch=batch, context=context)

    def cycle_ms(self, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Milliseconds of gamma draft steps, one verify step and the overhead; a plain step when gamma is 0."""
        plain = self.step_ms(batch=batch, context=context)
        if gamma == 0:
            return plain
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        return gamma * self.draft_ms(batch=batch, context=context) + verify + self.overhead * plain

    def speedup(self, alpha: float, gamma: int, *, batch: int = 1, context: int = 512) -> float:
        """Tokens per second with speculation over without, at this batch."""
        plain = self.step_ms(batch=batch, context=context)
        verify = self.step_ms(batch=batch, context=context, positions=gamma + 1)
        cost = self.draft_ms(batch=batch, context=context) / plain
        return speedup_in_batch(alpha, gamma, cost, verify_cost=verify / plain, overhead=self.overhead)

    def best_gamma(
        self, alpha: float, *, batch: int = 1, context: int = 512, most: int = MOST_DRAFTED
    ) -> tuple[int, float]:
        """The gamma with the largest speed-up at this batch, and that speed-up; 0 and 1.0 when drafting never pays."""
        return max(
            ((gamma, self.speedup(alpha, gamma, batch=batch, context=context)) for gamma in range(most + 1)),
            key=lambda choice: choice[1],
        )

    def pays_until(self, alpha: float, gamma: int, *, context: int = 512, most: int = 1_024) -> int:
        """The largest batch up to which drafting gamma tokens is faster than drafting none; 0 when it never is.

        The first batch where the speed-up is 1 or less ends the search. (Far beyond it reading the caches may again
        take longer than multiplying; such batches seldom fit into memory.)
        """
        for batch in range(1, most + 1):
            if self.speedup(alpha, gamma, batch=batch, context=context) <= 1:
                return batch - 1
        return most
