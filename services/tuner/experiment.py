"""The parts of an experiment: changes, metrics, targets, and number of measurements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Metric = Literal[
    "first_token_p50_ms", "first_token_p95_ms", "first_token_p99_ms",
    "token_p50_ms", "token_p95_ms", "token_p99_ms",
    "answer_p50_ms", "answer_p95_ms", "answer_p99_ms",
    "tokens_per_s", "memory_mib",
]  # fmt: skip

METRICS: Final[Mapping[Metric, str]] = {
    "first_token_p50_ms": "time to the first token, median",
    "first_token_p95_ms": "time to the first token, p95",
    "first_token_p99_ms": "time to the first token, p99",
    "token_p50_ms": "time between tokens, median",
    "token_p95_ms": "time between tokens, p95",
    "token_p99_ms": "time between tokens, p99",
    "answer_p50_ms": "time to the last token, median",
    "answer_p95_ms": "time to the last token, p95",
    "answer_p99_ms": "time to the last token, p99",
    "tokens_per_s": "tokens a second, all answers together",
    "memory_mib": "peak memory of the engine's processes",
}
"""The metrics of each arm, with their names for people. Lower values are better, except for ``tokens_per_s``."""

MORE_IS_BETTER: Final[frozenset[Metric]] = frozenset({"tokens_per_s"})

MIN_REQUESTS: Final = 1_000
"""Minimum number of requests of a comparison, from the latency guide. If there are fewer, the report says why."""

MIN_ROUNDS, MAX_ROUNDS = 3, 64
MIN_LOAD_REQUESTS: Final = 4
MAX_LOAD_REQUESTS: Final = 2_000

LOADS: Final = 4
"""Number of loads in a round: one engine runs the first and the last load, another engine the two between."""


class ExperimentError(ValueError):
    """The user's input is not valid. The message names the error and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """One change of the engine's settings.

    Attributes:
        settings: Environment variables and their values. An empty value unsets the variable.
        item: ``key`` of the ``GuideItem`` to which the change belongs.
        lossy: Whether the change may alter answers. If so, the loss of quality is measured.
    """

    name: str
    settings: Mapping[str, str]
    item: str
    lossy: bool = False

    def over(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, **self.settings}

    def is_in(self, base: Mapping[str, str]) -> bool:
        return all(base.get(name, "") == value for name, value in self.settings.items())


UNCHANGED: Final = SettingsChange(name="no change", settings={}, item="baseline")
"""No change. Before all changes, the baseline is compared with itself, to show by how much equal engines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    metric: Metric
    value: float

    def is_met(self, found: Mapping[Metric, float]) -> bool:
        """Return whether the metric is as good as ``value``, or better. Return False if the metric was not measured."""
        value = found.get(self.metric, math.nan)
        return value >= self.value if self.metric in MORE_IS_BETTER else value <= self.value


def parse_target(text: str) -> Target:
    """Parse a text such as ``first_token_p99_ms=200``."""
    name, equals, number = text.partition("=")
    metric = parse_metric(name.strip())
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not 0 < value < math.inf:
        raise ExperimentError(f"{text!r}: give a metric and a number above 0, such as {metric}=200")
    return Target(metric=metric, value=value)


def parse_metric(name: str) -> Metric:
    for metric in METRICS:
        if metric == name:
            return metric
    raise ExperimentError(f"there is no metric {name!r}: choose one of {', '.join(METRICS)}")


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse texts such as ``RAILBUS_LLAMA_THREADS=2``."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith(("RAILBUS_", "VLLM_", "OMP_")):
            raise ExperimentError(f"{pair!r}: give a setting of the engine, such as RAILBUS_LLAMA_THREADS=2")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of rounds and requests of a comparison.

    Attributes:
        rounds: Number of rounds. In each round, four groups of requests are sent: two without and two with the change.
        load: Number of requests in each group.
        reason: Why the comparison has fewer than ``MIN_REQUESTS`` requests; empty if it has enough.
    """

    rounds: int
    load: int
    reason: str = ""

    @property
    def requests(self) -> int:
        return self.rounds * self.load * LOADS


def size(*, wanted: int, rounds: int, seconds: float | None, start_s: float, request_s: float) -> Size:
    """Choose the number of rounds and requests for the measurement of one change.

    ``wanted`` and ``rounds`` are the desired numbers of requests and rounds. ``seconds`` is the available time; None
    means no limit. A round needs ``start_s`` seconds to start engines, and ``request_s`` seconds for each request.
    """
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, rounds))
    reason = f"{wanted} were asked for" if wanted < MIN_REQUESTS else ""
    if seconds is not None:
        while rounds > MIN_ROUNDS and rounds * (start_s + LOADS * MIN_LOAD_REQUESTS * request_s) > seconds:
            rounds -= 1
    load = max(MIN_LOAD_REQUESTS, min(MAX_LOAD_REQUESTS, math.ceil(wanted / (rounds * LOADS))))
    if seconds is not None:
        left_s = seconds / rounds - start_s
        if left_s < LOADS * load * request_s:
            fits = int(left_s / (LOADS * request_s)) if left_s > 0 else 0
            load = max(MIN_LOAD_REQUESTS, fits)
            reason = (
                f"the budget leaves {seconds:.0f} s a change, a start takes {start_s:.1f} s and a request"
                f" {request_s * 1e3:.0f} ms"
            )
    found = Size(rounds=rounds, load=load)
    return Size(rounds=rounds, load=load, reason="" if found.requests >= MIN_REQUESTS else reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that decide whether a change is kept.

    Attributes:
        margin: A change is kept only if the whole confidence interval of its relative gain is above this value.
        confidence: Level of the confidence interval.
        guards: By metric, the largest relative loss that a change may cause. The entry of the metric to be improved is
            ignored. A change is refused if the whole 80 % confidence interval of a loss is above its limit.
        accepted: Exemptions from ``guards``. A metric may lose more than its guard allows if it still meets its target
            in ``accepted``.
        max_loss: Largest accepted loss of the answers' quality, as a share. The loss is the relative rise of the
            perplexity, or the drop in the share of solved tasks if the engine reports no log-probabilities.
    """

    objective: Metric = "answer_p50_ms"
    margin: float = 0.02
    confidence: float = 0.99
    guards: Mapping[Metric, float] = field(
        default_factory=lambda: {
            "first_token_p99_ms": 0.05,
            "token_p99_ms": 0.05,
            "tokens_per_s": 0.02,
            "memory_mib": 0.25,
        }
    )
    accepted: Sequence[Target] = ()
    max_loss: float = 0.01
