"""Percentiles, and confidence intervals by bootstrap with seeded random numbers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

RESAMPLES: Final = 400
"""Number of bootstrap resamples. With this number, two digits of the ends of an interval are reliable."""

BLOCK: Final = 8
"""Number of neighbouring requests that are resampled together, because they waited in the same queue."""


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not within {self.low} and {self.high}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of the values. ``share`` is between 0 and 1: 0.5 gives the median.

    Interpolate linearly between the two nearest values.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def bootstrap(
    values: Sequence[float], measure: Callable[[Sequence[float]], float], *, seed: int = 0, block: int = BLOCK
) -> Interval:
    """Return ``measure(values)`` with its 95 % confidence interval by the moving block bootstrap (Kuensch 1989).

    Values are resampled in blocks of consecutive values. ``block`` is the number of values in a block. If there are few
    values, the blocks are smaller.
    """
    rng = random.Random(seed)  # noqa: S311 - it must be repeatable
    resampled = sorted(measure([values[i] for i in _blocks(len(values), block, rng)]) for _ in range(RESAMPLES))
    return _interval(measure(values), resampled)


def bootstrap_ratio(
    above: Sequence[float], below: Sequence[float], measure: Callable[[Sequence[float]], float], *, seed: int = 0
) -> Interval:
    """Return ``measure(above) / measure(below)`` with its 95 % confidence interval.

    The two lists are resampled independently.
    """
    rng = random.Random(seed)  # noqa: S311 - it must be repeatable

    def once() -> float:
        a, b = ([each[i] for i in _blocks(len(each), BLOCK, rng)] for each in (above, below))
        return measure(a) / measure(b)

    resampled = sorted(once() for _ in range(RESAMPLES))
    return _interval(measure(above) / measure(below), resampled)


def _interval(value: float, resampled: Sequence[float]) -> Interval:
    # With few and partly equal times, the value itself could be outside the interval of the resamples.
    return Interval(value, min(value, percentile(resampled, 0.025)), max(value, percentile(resampled, 0.975)))


def _blocks(size: int, block: int, rng: random.Random) -> list[int]:
    length = max(1, min(block, size // 2))
    indexes: list[int] = []
    while len(indexes) < size:
        start = rng.randint(0, size - length)
        indexes += range(start, start + length)
    return indexes[:size]
