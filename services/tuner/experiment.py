"""What an experiment is made of: changes, metrics, targets, and how much is measured. Pure."""

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
"""What is measured of each arm. Of all but ``tokens_per_s`` less is better."""

MORE_IS_BETTER: Final[frozenset[Metric]] = frozenset({"tokens_per_s"})

SECRET: Final = ("KEY", "TOKEN", "PASSWORD", "SECRET")
"""Endings of the names of variables whose values appear in no report."""

MIN_REQUESTS: Final = 1_000
"""Requests that a comparison should have, as the guide asks; fewer need a reason."""

MIN_ROUNDS, MAX_ROUNDS = 3, 64
MIN_LOAD_REQUESTS: Final = 4
MAX_LOAD_REQUESTS: Final = 2_000

LOADS: Final = 4
"""Loads of a round: A B B A."""


class ExperimentError(ValueError):
    """Something that was asked for is not possible; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """One change of the engine's settings.

    Attributes:
        name: What people call it, such as ``threads 2``.
        settings: Variables and their values; an empty value unsets a variable.
        item: Key of the guide's item that it belongs to.
        lossy: Whether it may change answers. Its loss is measured then.
    """

    name: str
    settings: Mapping[str, str]
    item: str
    lossy: bool = False

    def over(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the settings with this change on top."""
        return {**base, **self.settings}

    def is_in(self, base: Mapping[str, str]) -> bool:
        """Return whether the settings already are what the change would make them."""
        return all(base.get(name, "") == value for name, value in self.settings.items())


UNCHANGED: Final = SettingsChange(name="no change", settings={}, item="baseline")
"""Compares the baseline with itself, before all changes, to show by how much equal engines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value that a metric must reach."""

    metric: Metric
    value: float

    def is_met(self, found: Mapping[Metric, float]) -> bool:
        """Return whether the metric was measured and reaches the value."""
        value = found.get(self.metric, math.nan)
        return value >= self.value if self.metric in MORE_IS_BETTER else value <= self.value


def parse_target(text: str) -> Target:
    """Return the target in a text such as ``first_token_p99_ms=200``.

    Raises:
        ExperimentError: The text is not a target.
    """
    name, equals, number = text.partition("=")
    metric = parse_metric(name.strip())
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not 0 < value < math.inf:
        raise ExperimentError(f"{text!r} is no target: give a number above 0, such as {metric}=200")
    return Target(metric=metric, value=value)


def parse_metric(name: str) -> Metric:
    """Return the metric of this name.

    Raises:
        ExperimentError: There is none.
    """
    for metric in METRICS:
        if metric == name:
            return metric
    raise ExperimentError(f"there is no metric {name!r}: choose one of {', '.join(METRICS)}")


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings in texts such as ``RAILBUS_LLAMA_THREADS=2``.

    Raises:
        ExperimentError: A text is not such a pair, or a variable is none of an engine's.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith(("RAILBUS_", "VLLM_", "OMP_")):
            raise ExperimentError(f"{pair!r}: give a setting of the engine, such as RAILBUS_LLAMA_THREADS=2")
        found[name] = value
    return found


def shown(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a report: a secret is only said to be set."""
    return {name: "(set)" if name.endswith(SECRET) else value for name, value in settings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a comparison measures.

    Attributes:
        rounds: Rounds of A B B A; each starts both engines anew.
        load: Requests of each of a round's four loads.
        reason: Why it has fewer than ``MIN_REQUESTS`` requests; empty if it has not.
    """

    rounds: int
    load: int
    reason: str = ""

    @property
    def requests(self) -> int:
        """Requests of a comparison."""
        return self.rounds * self.load * LOADS


def size(*, wanted: int, rounds: int, seconds: float | None, start_s: float, request_s: float) -> Size:
    """Return how much to measure of one change.

    Args:
        wanted: Requests.
        rounds: Rounds.
        seconds: Time there is for it; None for any.
        start_s: Time to start both engines once.
        request_s: Time of one request, when as many run at once as in the experiment.
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
    """When a change is kept.

    Attributes:
        objective: The metric that must gain.
        margin: Share by which the interval of its gain must exceed zero.
        confidence: Of the intervals that decide.
        guards: Metrics that may not be shown to lose more than the share given.
        max_loss: Largest share of quality that a lossy change may lose.
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
    max_loss: float = 0.01
