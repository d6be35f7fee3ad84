"""Compute how well a small model finds the requests to which a larger model would give its highest scores.

In a cascade, the small model scores every request, and the requests with the highest scores go on to the larger model.
The two scores of a request are modelled as correlated normal variables.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, correlation
from typing import Final

from services.physics.checks import fraction, positive

POINTS: Final = 400
"""Number of points of the midpoint rule, which integrates over requests. More points change only the fourth digit."""

_NORMAL: Final = NormalDist()


def recall(rho: float, *, best: float, kept: float) -> float:
    """Return the share of the best requests that reach the last model of a cascade of two models.

    The best are those to which the last model would give its highest scores.

    Args:
        rho: Rank correlation between the first model's score and the last model's score.
        best: Share of all requests that count as the best, such as 0.01.
        kept: Share of all requests that go from the first model to the last model.

    Raises:
        ValueError: A share is not within 0 and 1, or ``rho`` is not within -1 and 1.
    """
    return chain_recall((rho,), best=best, kept=(kept,))


def chain_recall(rhos: Sequence[float], *, best: float, kept: Sequence[float]) -> float:
    """Return the share of the best requests that reach the last model of a cascade.

    The best are those to which the last model would give its highest scores.

    Args:
        rhos: For each model before the last one, the rank correlation between its score and the last model's score.
        best: Share of all requests that count as the best, such as 0.01.
        kept: For each model before the last one, the share of all requests that it passes on.

    Raises:
        ValueError: A value is out of range, a share in ``kept`` is larger than the one before, or the lengths differ.
    """
    positive("best", fraction("best", best))
    if len(rhos) != len(kept) or list(kept) != sorted(kept, reverse=True):
        raise ValueError("each screen needs a rho and a share that is not above the one before")
    for rho, share in zip(rhos, kept, strict=True):
        fraction("kept", share)
        if not -1 <= rho <= 1:
            raise ValueError(f"rho must be within -1 and 1, not {rho!r}")
    # The errors of the models' scores are assumed to be independent.
    everything = [_NORMAL.inv_cdf((step + 0.5) / POINTS) for step in range(POINTS)]
    finals = [_NORMAL.inv_cdf(1 - best * (step + 0.5) / POINTS) for step in range(POINTS)]
    passed, found = [1.0] * POINTS, [1.0] * POINTS
    for number, (rho, share) in enumerate(zip(rhos, kept, strict=True)):
        if share in {0, 1}:
            passed, found = [each * share for each in passed], [each * share for each in found]
            continue
        bar = _NORMAL.inv_cdf(1 - share) if number == 0 else _bar(rho, share, everything, passed)
        passed = [each * _above(rho, bar, final) for each, final in zip(passed, everything, strict=True)]
        found = [each * _above(rho, bar, final) for each, final in zip(found, finals, strict=True)]
    return sum(found) / POINTS


def _above(rho: float, bar: float, final: float) -> float:
    # The correlation that belongs to a rank correlation (Spearman) of rho (Pearson 1907). Given the final score f, the
    # score of the screen is normal with mean r f and variance 1 - r^2.
    r = 2 * math.sin(math.pi * rho / 6)
    spread = math.sqrt(max(0.0, 1 - r * r))
    return float(r * final >= bar) if spread < 1e-9 else _NORMAL.cdf((r * final - bar) / spread)


def _bar(rho: float, share: float, finals: Sequence[float], passed: Sequence[float]) -> float:
    low, high = -8.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        remains = sum(each * _above(rho, middle, final) for each, final in zip(passed, finals, strict=True)) / POINTS
        low, high = (middle, high) if remains > share else (low, middle)
    return low


def rank_correlation(screen: Sequence[float], final: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two lists of scores of the same requests.

    Raises:
        ValueError: There are fewer than three requests, the lengths differ, or all scores in a list are equal.
    """
    if len(screen) != len(final) or len(screen) < 3:
        raise ValueError(f"a rank correlation needs two lists of at least 3 scores, not {len(screen)}, {len(final)}")
    if len(set(screen)) == 1 or len(set(final)) == 1:
        raise ValueError("a rank correlation needs scores that differ")
    return correlation(_ranks(screen), _ranks(final))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in order[start : end + 1]:
            found[position] = (start + end) / 2
        start = end + 1
    return found
