"""Choose the number of tokens to draft per step (gamma) from the batch size and the measured acceptance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from services.physics.checks import fraction, whole
from services.physics.pairing import SpeculationPair
from services.physics.speculation import MAX_GAMMA

MARGIN: Final = 0.03
"""Minimum predicted gain, as a share, at which drafting is chosen. It allows for the model's error."""

HORIZON_DRAFTS: Final = 500.0
"""After this many further verified draft tokens, the weight of a token in the acceptance estimate is about 1/e."""

PRIOR_DRAFTS: Final = 8.0
"""Weight of the expected acceptance with which an estimate starts, in verified draft tokens."""

PROBE_GAMMA: Final = 2
"""Tokens drafted in an occasional step while drafting is off, to notice when drafting saves time again."""

PROBE_SHARE: Final = 0.015
"""Maximum share of time spent in steps with ``PROBE_GAMMA`` drafts, if all these drafts are rejected."""


@dataclass(frozen=True, slots=True)
class GammaBand:
    """The number of tokens to draft (``gamma``) for batches of ``first`` to ``last`` sequences, both included."""

    first: int
    last: int
    gamma: int


def gamma_by_batch(
    pair: SpeculationPair, alpha: float, *, context: int = 512, largest: int = 256, max_gamma: int = MAX_GAMMA
) -> tuple[GammaBand, ...]:
    """Return the best gamma (number of tokens to draft) for the batch sizes from 1 to ``largest``.

    Gamma is 0 where drafting saves no time.
    """
    fraction("alpha", alpha)
    whole("largest", largest, least=1)
    bands: list[GammaBand] = []
    for batch in range(1, largest + 1):
        gamma = bands[-1].gamma if bands else max_gamma
        gamma, _ = pair.best_gamma(alpha, batch=batch, context=context, max_gamma=gamma)
        if bands and bands[-1].gamma == gamma:
            bands[-1] = replace(bands[-1], last=batch)
        else:
            bands.append(GammaBand(batch, batch, gamma))
    return tuple(bands)


def format_schedule(bands: Sequence[GammaBand]) -> str:
    """Format the bands as text, such as ``1-8:5 9-32:3 33-256:0``: ranges of batch sizes, each with its gamma."""
    return " ".join(f"{band.first}-{band.last}:{band.gamma}" for band in bands)


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """A running estimate of the probability that a drafted token is accepted. Newer tokens weigh more."""

    accepted: float
    rejected: float

    @classmethod
    def expected(cls, alpha: float) -> "AcceptanceEstimate":
        fraction("alpha", alpha)
        return cls(PRIOR_DRAFTS * alpha, PRIOR_DRAFTS * (1 - alpha))

    @property
    def alpha(self) -> float:
        return self.accepted / (self.accepted + self.rejected)

    def after(self, drafted: int, accepted: int) -> "AcceptanceEstimate":
        """Return the estimate after one more step.

        Raises:
            ValueError: More tokens were accepted than drafted.
        """
        if whole("accepted", accepted) > whole("drafted", drafted):
            raise ValueError(f"accepted must be at most drafted ({drafted}), not {accepted!r}")
        verified = accepted + (accepted < drafted)
        keep = max(0.0, 1 - verified / HORIZON_DRAFTS)
        return AcceptanceEstimate(self.accepted * keep + accepted, self.rejected * keep + verified - accepted)


def probe_after(pair: SpeculationPair, *, batch: int, context: int = 512) -> int:
    """Return the number of steps without drafting before the next probe.

    A probe is a step that drafts ``PROBE_GAMMA`` tokens, to test whether drafting saves time again.
    """
    plain = pair.step_ms(batch=batch, context=context)
    return ceil((pair.cycle_ms(PROBE_GAMMA, batch=batch, context=context) - plain) / (PROBE_SHARE * plain))


def choose_gamma(
    pair: SpeculationPair,
    acceptance: AcceptanceEstimate,
    *,
    batch: int,
    context: int = 512,
    max_gamma: int = MAX_GAMMA,
    idle_steps: int = 0,
) -> int:
    """Return the number of tokens to draft in the next step: at least 0 and at most ``max_gamma``.

    ``idle_steps`` is the number of steps since the last draft.
    """
    gamma, speed = pair.best_gamma(acceptance.alpha, batch=batch, context=context, max_gamma=max_gamma)
    if gamma and speed > 1 + MARGIN:
        return gamma
    return (
        min(PROBE_GAMMA, max_gamma)
        if idle_steps and idle_steps >= probe_after(pair, batch=batch, context=context)
        else 0
    )
