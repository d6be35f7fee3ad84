"""Confidence intervals of means, ratios and shares."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final

from services.physics.statistics import Interval

_STANDARD: Final = NormalDist()


def variation(values: Sequence[float]) -> float:
    """Return the coefficient of variation. Return NaN for fewer than two values."""
    mean = fmean(values) if values else 0.0
    return stdev(values) / mean if len(values) > 1 and mean else math.nan


def t_quantile(degrees: int, confidence: float) -> float:
    """Return the two-sided quantile of Student's t distribution (Hill 1970, algorithm 396)."""
    if degrees < 1:
        raise ValueError("an interval needs two values")
    tail = 1 - confidence
    if degrees == 1:
        return 1 / math.tan(tail * math.pi / 2)
    if degrees == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    a = 1 / (degrees - 0.5)
    b = 48 / a**2
    c = ((20_700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * degrees
    y = (d * tail) ** (2 / degrees)
    if y > 0.05 + a:
        x = _STANDARD.inv_cdf(tail / 2)
        y = x * x
        if degrees < 5:
            c += 0.3 * (degrees - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = a * y * y
        y = math.exp(y) - 1 if y > 0.002 else 0.5 * y * y + y
    else:
        y = (
            (1 / (((degrees + 6) / (degrees * y) - 0.089 * d - 0.822) * (degrees + 2) * 3) + 0.5 / (degrees + 4)) * y
            - 1
        ) * (degrees + 1) / (degrees + 2) + 1 / y
    return math.sqrt(degrees * y)


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """Return the mean with its t-interval. The interval of a single value is infinite."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(above: Sequence[float], below: Sequence[float], confidence: float) -> Interval:
    """Return the geometric mean of the ratios ``above / below``, with its confidence interval.

    The interval of a single ratio has no upper end.
    """
    logs = mean_interval([math.log(a / b) for a, b in zip(above, below, strict=True)], confidence)
    # ``math.exp`` raises an error for numbers above 709.
    return Interval(*(math.exp(end) if end < 700 else math.inf for end in (logs.value, logs.low, logs.high)))


def wilson(successes: int, trials: int, confidence: float) -> Interval:
    """Return the share of successes with its score interval (Wilson 1927).

    If ``trials`` is 0, return the share 0 with the interval from 0 to 1.
    """
    if not trials:
        return Interval(0.0, 0.0, 1.0)
    z = -_STANDARD.inv_cdf((1 - confidence) / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def paired_difference(first: Sequence[bool], second: Sequence[bool], confidence: float) -> Interval:
    """Return the share of True in ``first`` minus the share of True in ``second``, with its confidence interval.

    The sequences are paired. The interval is computed with method 10 of Newcombe (1998).
    """
    trials = len(first)
    pairs = list(zip(first, second, strict=True))
    both, only_first, only_second = pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True))
    neither = trials - both - only_first - only_second
    one = wilson(both + only_first, trials, confidence)
    two = wilson(both + only_second, trials, confidence)
    if not only_first and not only_second:  # method 10 may give an interval without width
        reach_of_none = wilson(0, trials, confidence).high
        return Interval(0.0, -reach_of_none, reach_of_none)
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    phi = (both * neither - only_first * only_second) / math.sqrt(margins) if margins else 0.0
    value = one.value - two.value

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    low = value - reach(one.value - one.low, two.high - two.value)
    high = value + reach(one.high - one.value, two.value - two.low)
    return Interval(value, max(-1.0, low), min(1.0, high))
