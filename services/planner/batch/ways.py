"""The data types of a batch plan: the job, and each way to run it with its time, cost and quality."""

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
"""Median relative error of predicted step times on a source that the constants were not fitted to.

It was measured by tests.bench.published.
"""

LEAST_SHARE: Final = 1e-9
"""Smallest share of the requests for which a cascade is planned."""


@dataclass(frozen=True, slots=True)
class Range:
    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Range":
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def plus(self, other: "Range") -> "Range":
        return Range(self.value + other.value, self.low + other.low, self.high + other.high)

    def at_least(self, other: "Range") -> "Range":
        return Range(max(self.value, other.value), max(self.low, other.low), max(self.high, other.high))


def exactly(value: float) -> Range:
    return Range(value, value, value)


def spread(value: float, pairs: Iterable[tuple[float, float]]) -> Range:
    """Return a predicted ``value`` with its error interval, which combines the errors of several inputs.

    For each uncertain input, ``pairs`` has two predictions: one with the input's lower bound, one with the upper bound.
    """
    # The deviations from the value, as logarithms, are added in quadrature.
    down, up = math.log1p(LAW_ERROR) ** 2, math.log1p(LAW_ERROR) ** 2
    for pair in pairs:
        moves = [math.log(each / value) for each in pair]
        down += min(0.0, *moves) ** 2
        up += max(0.0, *moves) ** 2
    return Range(value, value * math.exp(-math.sqrt(down)), value * math.exp(math.sqrt(up)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """The job to plan.

    A cascade finds the best of many requests. For example, if each request is about a job application, the cascade
    finds the best applications. A small model answers all requests, and each answer gets a score. Only the requests
    whose answers have the highest scores go on to a larger model.

    Attributes:
        gpu: The user's own accelerator; None without one.
        smaller: Smaller models that may be used instead of ``model``.
        alpha: Probability that a drafted token is accepted.
        counts: Numbers of accelerators for which the job is planned.
        refined: Share of all requests that a cascade of two models passes on to the larger model.
        best: Share of all requests that count as the best. These are the requests whose answers would get the highest
            scores if the last model of a cascade answered every request. The plan predicts what share of them
            reaches the last model.
        rho: Rank correlation between the scores of the first model's answers and those of the last model's answers,
            in a cascade.
        quality_loss: By how many points the quality score of the planned way may be lower than that of ``model``.
        factors: Measured corrections of predicted times, by the name of the accelerator.
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
            if not LEAST_SHARE <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be above 0 (at least {LEAST_SHARE}) and below 1, not {getattr(self, name)!r}"
                )
        if self.draft is not None and self.draft.parameters >= self.model.parameters:
            raise ValueError(
                f"the draft {self.draft.name} is not smaller than {self.model.name}: give another, or --draft none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run the job, such as on a rented GPU or on a provider's API.

    Attributes:
        kind: Heading in the report under which this way stands.
        hours: Hours until the last answer, including the set-up.
        money: Cost in US dollars.
        per_second: Requests per second, not counting the set-up.
        score: Quality score of the model, minus the loss that the weight precision causes; None if unknown. A cascade's
            score is computed from the scores of its steps.
        complexity: Effort to build and to operate.
        why: Phrase for the report: what explains the figures of this way.
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
    name: str
    reason: str
    remedy: str


@dataclass(slots=True)
class Found:
    ways: list[Way] = field(default_factory=list)
    refusals: list[ExcludedWay] = field(default_factory=list)

    def attempt(self, name: str, make: Callable[[], Way], remedy: Callable[[], str]) -> Way | None:
        """Append the result of ``make()`` to ``ways``, and return it.

        If ``make`` raises ``ValueError``, append the error and the text ``remedy()`` to ``refusals``, and return None.
        """
        try:
            way = make()
        except ValueError as error:
            self.refusals.append(ExcludedWay(name, str(error), remedy()))
            return None
        self.ways.append(way)
        return way
