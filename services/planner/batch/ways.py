"""The terms of a batch plan: the job, a way to do it, and a way that is not possible. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from services.physics.batches import BatchWork
from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.checks import fraction

Kind = Literal["measured", "local", "less work", "smaller model", "several GPUs", "rented", "API", "cascade"]
Complexity = Literal["low", "medium", "high"]

LAW_ERROR: Final = 0.08
"""Median error of the law of a step on a source that its constants were not fitted to (tests.bench.published)."""


@dataclass(frozen=True, slots=True)
class Range:
    """A value with the low and the high end of its interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Range":
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def plus(self, other: "Range") -> "Range":
        return Range(self.value + other.value, self.low + other.low, self.high + other.high)

    def at_least(self, other: "Range") -> "Range":
        """Return the larger of two ranges, bound by bound, because two parallel runs take as long as the slower one."""
        return Range(max(self.value, other.value), max(self.low, other.low), max(self.high, other.high))


def exactly(value: float) -> Range:
    return Range(value, value, value)


def spread(value: float, pairs: Iterable[tuple[float, float]]) -> Range:
    """Return the value with its interval. The deviations by independent causes are added in quadrature.

    The deviations are logarithms. Each pair holds the values at the two ends of one cause's interval. The model's own
    error counts as one more cause.
    """
    down, up = math.log1p(LAW_ERROR) ** 2, math.log1p(LAW_ERROR) ** 2
    for pair in pairs:
        moves = [math.log(each / value) for each in pair]
        down += min(0.0, *moves) ** 2
        up += max(0.0, *moves) ** 2
    return Range(value, value * math.exp(-math.sqrt(down)), value * math.exp(math.sqrt(up)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """The job to plan.

    Attributes:
        work: Number of requests, and their tokens.
        model: The wanted model.
        gpu: The user's own accelerator; None without one.
        smaller: Smaller models that may be used instead.
        draft: Draft model; None without speculation.
        alpha: Probability that a drafted token is accepted.
        counts: Numbers of accelerators to consider.
        refined: Share of the requests that a cascade passes on.
        best: Share of the requests that a cascade is to find.
        rho: Rank correlation of the screen's score and the final one.
        quality_loss: Points by which a way's score may be below that of the wanted model.
        factors: For each accelerator, the time that a sample took on it, divided by the time by the law.
    """

    work: BatchWork
    model: Model
    gpu: Gpu | None
    smaller: tuple[Model, ...] = ()
    draft: Model | None = None
    alpha: float = 0.7
    counts: tuple[int, ...] = (1, 2, 4, 8)
    refined: float = 0.1
    best: float = 0.01
    rho: float = 0.8
    quality_loss: float = 5.0
    factors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)
        fraction("rho", self.rho)
        for name in ("refined", "best"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be above 0 and below 1, not {getattr(self, name)!r}")
        if self.draft is not None and self.draft.parameters >= self.model.parameters:
            raise ValueError(
                f"the draft {self.draft.name} is not smaller than {self.model.name}: give another, or --draft none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to do the job.

    Attributes:
        name: Description of the way.
        kind: The group of ways that it belongs to.
        hours: Hours until the last answer, including the set-up.
        money: Its cost.
        per_second: Requests per second while it runs.
        score: The model's score, less what the precision loses; None if it is not known.
        quality: The quality in words.
        complexity: How much has to be built and operated.
        why: The parts of its time, in words.
    """

    name: str
    kind: Kind
    hours: Range
    money: Range
    per_second: float
    score: float | None
    quality: str
    complexity: Complexity
    why: str


@dataclass(frozen=True, slots=True)
class ExcludedWay:
    """A way that is not possible, the reason, and a remedy."""

    name: str
    reason: str
    remedy: str


@dataclass(slots=True)
class Found:
    """The ways and excluded ways that were found so far, in order."""

    ways: list[Way] = field(default_factory=list)
    refusals: list[ExcludedWay] = field(default_factory=list)

    def attempt(self, name: str, make: Callable[[], Way], remedy: Callable[[], str]) -> Way | None:
        """Add the way. If it does not fit, add it as excluded."""
        try:
            way = make()
        except ValueError as error:
            self.refusals.append(ExcludedWay(name, str(error), remedy()))
            return None
        self.ways.append(way)
        return way
