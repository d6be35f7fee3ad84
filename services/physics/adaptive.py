"""How many tokens to draft, from the load and from what was accepted so far: never worse than drafting none.

What pays at batch 1 costs at batch 100, and what pays on code costs on poetry, so gamma follows both. It is chosen by
the model of :mod:`services.physics.pairing`; 0 is always among the choices, which is what "never worse" rests on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from services.physics.checks import fraction, whole
from services.physics.pairing import Pair
from services.physics.speculation import MOST_DRAFTED

MARGIN: Final = 0.03
"""Drafting must promise that much more than none before it is done: the model errs too."""

HORIZON: Final = 500.0
"""Observations that count, in drafted tokens that were looked at; older ones fade."""

PRIOR: Final = 8.0
"""Observations that the expected alpha is worth before anything was seen."""

PROBE: Final = 2
"""Tokens drafted now and then while off, so that better times are noticed."""

PROBE_SHARE: Final = 0.015
"""Most of the time that such steps may take when all they draft is rejected."""


@dataclass(frozen=True, slots=True)
class Band:
    """Batches of ``first`` to ``last`` sequences (both included) draft ``gamma`` tokens; 0 drafts none."""

    first: int
    last: int
    gamma: int


def gamma_by_batch(
    pair: Pair, alpha: float, *, context: int = 512, largest: int = 256, most: int = MOST_DRAFTED
) -> tuple[Band, ...]:
    """Bands from batch 1 to ``largest``; gamma never grows with the batch, and is 0 where drafting does not pay.

    An engine's profile can carry it as it is. Each gamma is the best among those not above the one before.
    """
    fraction("alpha", alpha)
    whole("largest", largest, least=1)
    bands: list[Band] = []
    for batch in range(1, largest + 1):
        gamma = bands[-1].gamma if bands else most
        gamma, _ = pair.best_gamma(alpha, batch=batch, context=context, most=gamma)
        if bands and bands[-1].gamma == gamma:
            bands[-1] = replace(bands[-1], last=batch)
        else:
            bands.append(Band(batch, batch, gamma))
    return tuple(bands)


def profile(bands: Sequence[Band]) -> str:
    """The bands as the engine ``vllm`` takes them: ``1-8:5 9-32:3 33-256:0``."""
    return " ".join(f"{band.first}-{band.last}:{band.gamma}" for band in bands)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was accepted lately, fading. A draft behind a rejected one was not looked at and counts for nothing.

    Attributes:
        accepted: Drafts accepted, weighted by their age.
        rejected: Drafts rejected, likewise.
    """

    accepted: float
    rejected: float

    @classmethod
    def expected(cls, alpha: float) -> "Acceptance":
        """Nothing seen yet."""
        fraction("alpha", alpha)
        return cls(PRIOR * alpha, PRIOR * (1 - alpha))

    @property
    def alpha(self) -> float:
        """The chance that a drafted token is accepted."""
        return self.accepted / (self.accepted + self.rejected)

    def after(self, drafted: int, accepted: int) -> "Acceptance":
        """With one more step's drafts.

        Raises:
            ValueError: More were accepted than drafted.
        """
        if whole("accepted", accepted) > whole("drafted", drafted):
            raise ValueError(f"accepted must be at most drafted ({drafted}), not {accepted!r}")
        looked_at = accepted + (accepted < drafted)
        keep = max(0.0, 1 - looked_at / HORIZON)
        return Acceptance(self.accepted * keep + accepted, self.rejected * keep + looked_at - accepted)


def probe_after(pair: Pair, *, batch: int, context: int = 512) -> int:
    """Steps without drafting after which one that drafts ``PROBE`` tokens costs no more than its share."""
    plain = pair.step_ms(batch=batch, context=context)
    return ceil((pair.cycle_ms(PROBE, batch=batch, context=context) - plain) / (PROBE_SHARE * plain))


def choose_gamma(
    pair: Pair, seen: Acceptance, *, batch: int, context: int = 512, most: int = MOST_DRAFTED, idle_steps: int = 0
) -> int:
    """Tokens to draft in the next step.

    Args:
        pair: What is known of target, draft and accelerator.
        seen: What was accepted so far.
        batch: Sequences in the step.
        context: Tokens each has in its cache.
        most: Largest gamma the engine takes.
        idle_steps: Steps since anything was drafted.
    """
    gamma, speed = pair.best_gamma(seen.alpha, batch=batch, context=context, most=most)
    if gamma and speed > 1 + MARGIN:
        return gamma
    return min(PROBE, most) if idle_steps and idle_steps >= probe_after(pair, batch=batch, context=context) else 0
