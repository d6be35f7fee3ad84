"""Compute the speed-up of speculative decoding: a draft proposes gamma tokens, the target verifies them in one step.

The formulas are from Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023).
alpha is the probability that a drafted token is accepted.
"""

import math
from collections.abc import Sequence
from typing import Final

from services.physics.checks import fraction, not_negative, positive, whole

OVERHEAD: Final = 0.05
"""Sampling, bookkeeping and launches in a cycle, as a share of a target step (approximate, from other systems)."""
SMALLEST_DEVIATION: Final = 0.002
"""Standard deviation of alpha below which its effect is negligible."""
_REACH: Final = 8.0
"""Half-width of the tanh-sinh rule. With it, alpha comes within exp(-4,600) of 0 and 1."""

MAX_GAMMA: Final = 16
"""Largest gamma that is considered. Published engines use smaller ones."""


def tokens_per_step(alpha: float, gamma: int) -> float:
    """Return the expected number of tokens per verify step: (1 - alpha^(gamma+1)) / (1 - alpha).

    This is equation 1 of Leviathan et al. (2023). It counts the accepted tokens and the one that the target adds.
    """
    fraction("alpha", alpha)
    whole("gamma", gamma)
    if alpha == 1:
        return gamma + 1.0
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def tokens_per_step_by_position(acceptance: Sequence[float]) -> float:
    """Return the expected number of tokens per verify step, if the acceptance depends on the position in the draft.

    For each position in the draft, ``acceptance`` has the probability that the token there is accepted if all tokens
    before it were accepted.
    """
    total, alive = 1.0, 1.0
    for position, chance in enumerate(acceptance, start=1):
        alive *= fraction(f"acceptance of position {position}", chance)
        total += alive
    return total


def tokens_per_step_spread(mean: float, deviation: float, gamma: int, *, points: int = 8_000) -> float:
    """Return the expected number of tokens per verify step, if the acceptance probability differs between requests.

    The acceptance probability follows a Beta distribution with this mean and standard deviation.
    """
    fraction("mean", mean)
    not_negative("deviation", deviation)
    if deviation < SMALLEST_DEVIATION:
        return tokens_per_step(mean, gamma)
    variance = deviation * deviation
    if variance >= mean * (1 - mean):
        most = math.sqrt(mean * (1 - mean))
        raise ValueError(f"deviation must be below {most:.3g} when the mean is {mean}, not {deviation!r}")
    strength = mean * (1 - mean) / variance - 1
    a, b = mean * strength, (1 - mean) * strength
    logs, alphas = [], []
    # The tanh-sinh rule (Takahasi and Mori 1974), because a Beta density may be infinite at 0 and 1.
    for step in range(points):
        t = (2 * (step + 0.5) / points - 1) * _REACH
        x = math.pi * math.sinh(t)  # alpha = 1 / (1 + exp(-x)); the density times d alpha / dt, in logarithms
        logs.append(-a * _softplus(-x) - b * _softplus(x) + math.log(math.cosh(t)))
        alphas.append(math.exp(-_softplus(-x)))
    peak = max(logs)
    weights = [math.exp(each - peak) for each in logs]
    # The time of an answer is proportional to 1 / tau, so the mean is harmonic.
    slowness = (weight / tokens_per_step(alpha, gamma) for alpha, weight in zip(alphas, weights, strict=True))
    return sum(weights) / sum(slowness)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def speedup(alpha: float, gamma: int, draft_cost: float, *, overhead: float = OVERHEAD) -> float:
    """Return the tokens per second with speculative decoding, divided by the tokens per second without it.

    ``draft_cost`` and ``overhead`` are in units of a target step.
    """
    # Theorem 3.8 of Leviathan et al. (2023), with an overhead per verify step.
    return speedup_in_batch(alpha, gamma, draft_cost, verify_cost=1.0, overhead=overhead)


def speedup_in_batch(
    alpha: float, gamma: int, draft_cost: float, *, verify_cost: float, overhead: float = OVERHEAD
) -> float:
    """Return the speed-up of speculative decoding, as ``speedup`` does.

    A verify step takes ``verify_cost`` times as long as a plain target step.
    """
    not_negative("draft_cost", draft_cost)
    not_negative("overhead", overhead)
    positive("verify_cost", verify_cost)
    if whole("gamma", gamma) == 0:
        return 1.0
    return tokens_per_step(alpha, gamma) / (verify_cost + gamma * draft_cost + overhead)


def best_gamma(
    alpha: float, draft_cost: float, *, overhead: float = OVERHEAD, max_gamma: int = MAX_GAMMA
) -> tuple[int, float]:
    """Return the best number of tokens to draft (gamma), and its speed-up; 0 and 1.0 if drafting saves no time."""
    whole("max_gamma", max_gamma)
    return max(
        ((gamma, speedup(alpha, gamma, draft_cost, overhead=overhead)) for gamma in range(max_gamma + 1)),
        key=lambda choice: choice[1],
    )


def budget_holds(draft_ms: float, target_ms: float, gamma: int, alpha: float) -> bool:
    """Return whether drafting ``gamma`` tokens is expected to save more time than it takes."""
    not_negative("draft_ms", draft_ms)
    positive("target_ms", target_ms)
    return draft_ms * gamma < target_ms * (tokens_per_step(alpha, gamma) - 1)


def largest_gamma_in_budget(alpha: float, draft_cost: float, *, max_gamma: int = 64) -> int:
    """Return the largest gamma (number of tokens to draft) at which drafting is expected to save time.

    The result is at most ``max_gamma``. It is 0 if drafting is not expected to save time at any gamma from 1 to
    ``max_gamma``.

    ``draft_cost`` is the time of a draft step divided by the time of a target step.
    """
    return max((gamma for gamma in range(1, max_gamma + 1) if budget_holds(draft_cost, 1.0, gamma, alpha)), default=0)


def acceptance_from_tokens(tau: float, gamma: int) -> float:
    """Return the acceptance probability at which ``tau`` tokens per verify step are expected.

    Raises:
        ValueError: ``tau`` or ``gamma`` is less than 1, or ``tau`` is more than ``gamma + 1``.
    """
    if whole("gamma", gamma, least=1) and not 1 <= tau <= gamma + 1:
        raise ValueError(f"tokens per step must be within 1 and {gamma + 1} for gamma {gamma}, not {tau!r}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, gamma) < tau else (low, middle)
    return (low + high) / 2
