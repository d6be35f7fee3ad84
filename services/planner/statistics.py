"""Percentiles and what they are worth. Pure: seeded."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

RESAMPLES: Final = 400
"""Enough for an interval's ends to two digits."""

BLOCK: Final = 8
"""Requests that wait behind each other are drawn together: this many neighbours at a time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and the ends between which 95 of 100 repetitions would find it."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest; the only value of one.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """The middle."""
    return percentile(values, 0.5)


def bootstrap(
    values: Sequence[float], measure: Callable[[Sequence[float]], float], *, seed: int = 0, block: int = BLOCK
) -> Interval:
    """Moving blocks (Kuensch 1989): neighbours stay together, because a queue makes them alike."""
    draw = random.Random(seed)  # noqa: S311 - it must be repeatable
    drawn = sorted(measure([values[i] for i in _blocks(len(values), block, draw)]) for _ in range(RESAMPLES))
    return _interval(measure(values), drawn)


def bootstrap_ratio(
    above: Sequence[float], below: Sequence[float], measure: Callable[[Sequence[float]], float], *, seed: int = 0
) -> Interval:
    """Of two arms, each resampled by itself: ``measure(above) / measure(below)``."""
    draw = random.Random(seed)  # noqa: S311 - it must be repeatable

    def once() -> float:
        a, b = ([each[i] for i in _blocks(len(each), BLOCK, draw)] for each in (above, below))
        return measure(a) / measure(b)

    drawn = sorted(once() for _ in range(RESAMPLES))
    return _interval(measure(above) / measure(below), drawn)


def _interval(value: float, drawn: Sequence[float]) -> Interval:
    """Never without the value itself, which few and equal times could otherwise leave outside."""
    return Interval(value, min(value, percentile(drawn, 0.025)), max(value, percentile(drawn, 0.975)))


def _blocks(size: int, block: int, draw: random.Random) -> list[int]:
    """Places of a resample: blocks of neighbours until there are as many as before."""
    length = max(1, min(block, size // 2))
    places: list[int] = []
    while len(places) < size:
        start = draw.randint(0, size - length)
        places += range(start, start + length)
    return places[:size]
