"""How much of the best a cheap screen keeps. Pure.

A cascade scores every request with a small model and gives the best to a larger one. What it finds depends on how well
the two scores agree. The scores' ranks are taken as those of two normal variables: with a rank correlation rho
(Spearman) their correlation is r = 2 sin(pi rho / 6) (Pearson 1907), and given the final score f the screen's score is
normal with mean r f and variance 1 - r^2.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, correlation
from typing import Final

from services.physics.checks import fraction, positive

POINTS: Final = 400
"""Points of the midpoint rule over the best share; more change the fourth digit."""

_NORMAL: Final = NormalDist()


def recall(rho: float, *, best: float, kept: float) -> float:
    """Return the share of the truly best that is among the kept.

    Args:
        rho: Rank correlation of the screen's score and the final one.
        best: Share of all requests that are the best, such as 0.01.
        kept: Share of all requests that the screen passes on.

    Raises:
        ValueError: A share is not within 0 and 1, or rho not within -1 and 1.
    """
    positive("best", fraction("best", best))
    fraction("kept", kept)
    if not -1 <= rho <= 1:
        raise ValueError(f"rho must be within -1 and 1, not {rho!r}")
    if kept in {0, 1}:
        return float(kept)
    r = 2 * math.sin(math.pi * rho / 6)
    bar = _NORMAL.inv_cdf(1 - kept)
    spread = math.sqrt(max(0.0, 1 - r * r))
    total = 0.0
    for step in range(POINTS):
        final = _NORMAL.inv_cdf(1 - best * (step + 0.5) / POINTS)
        total += float(r * final >= bar) if spread < 1e-9 else _NORMAL.cdf((r * final - bar) / spread)
    return total / POINTS


def rank_correlation(screen: Sequence[float], final: Sequence[float]) -> float:
    """Return Spearman's rho of two scores of the same requests; equal scores share their mean rank.

    Raises:
        ValueError: There are fewer than three requests, the lengths differ, or all scores of one kind are equal.
    """
    if len(screen) != len(final) or len(screen) < 3:
        raise ValueError(f"a rank correlation needs two scores of at least 3 requests, not {len(screen)}, {len(final)}")
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
