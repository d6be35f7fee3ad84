"""Compute metrics from measured requests."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from services.physics.statistics import Interval, percentile
from services.tuner.experiment import MORE_IS_BETTER, Metric
from services.tuner.statistics import ratio_interval, variation


class RequestRow(msgspec.Struct, frozen=True):
    """The measurements of one request, in milliseconds since the request was sent.

    Attributes:
        steps: Time and number of tokens of each engine step.
        total_ms: Time at which the request ended.
    """

    steps: tuple[tuple[float, int], ...]
    total_ms: float
    error: str | None = None

    @property
    def answered(self) -> bool:
        return self.error is None and bool(self.steps)


class Load(msgspec.Struct, frozen=True):
    """The measurements of a group of requests that were sent to one engine.

    Attributes:
        wall_s: Seconds from the start of the first request to the end of the last.
        memory_mib: Peak memory of the engine's processes; None if it cannot be read.
        gpu_mib: GPU memory of the engine's processes; None without a GPU.
    """

    requests: tuple[RequestRow, ...]
    wall_s: float
    memory_mib: float | None = None
    gpu_mib: float | None = None


class Round(msgspec.Struct, frozen=True):
    """The four measurements of one round: two without the change (``before``) and two with the change (``after``)."""

    before: tuple[Load, ...]
    after: tuple[Load, ...]


def values(loads: Sequence[Load]) -> dict[Metric, float]:
    """Compute the metrics over all loads together. The result is empty if no request was answered."""
    answered = [row for load in loads for row in load.requests if row.answered]
    if not answered:
        return {}
    found: dict[Metric, float] = {}
    first, gaps, totals = first_tokens(answered), token_gaps(answered), [row.total_ms for row in answered]
    if not gaps:
        gaps = [0.0]
    found["first_token_p50_ms"], found["first_token_p95_ms"], found["first_token_p99_ms"] = _percentiles(first)
    found["token_p50_ms"], found["token_p95_ms"], found["token_p99_ms"] = _percentiles(gaps)
    found["answer_p50_ms"], found["answer_p95_ms"], found["answer_p99_ms"] = _percentiles(totals)
    seconds = sum(load.wall_s for load in loads)
    found["tokens_per_s"] = sum(tokens for row in answered for _, tokens in row.steps) / seconds if seconds else 0.0
    memory = [load.memory_mib for load in loads if load.memory_mib is not None]
    if memory:
        found["memory_mib"] = max(memory)
    return {metric: value for metric, value in found.items() if value > 0}


def first_tokens(rows: Iterable[RequestRow]) -> list[float]:
    return [row.steps[0][0] for row in rows if row.answered]


def token_gaps(rows: Iterable[RequestRow]) -> list[float]:
    """Return the times between tokens. The time of a step with several tokens is divided equally among them."""
    return [
        (now - before) / tokens
        for row in rows
        if row.answered
        for (before, _), (now, tokens) in zip(row.steps, row.steps[1:], strict=False)
    ]


def failed(loads: Sequence[Load]) -> int:
    return sum(not row.answered for load in loads for row in load.requests)


def stability(loads: Sequence[Load]) -> tuple[float, float]:
    """Compute how much the answer times vary.

    Returns:
        The coefficient of variation of the loads' median answer times, and the p99 of all answer times divided by their
        p50. Both are NaN if no request was answered.
    """
    medians = [found["answer_p50_ms"] for load in loads if (found := values([load]))]
    pooled = values(loads)
    tail = pooled["answer_p99_ms"] / pooled["answer_p50_ms"] if pooled else float("nan")
    return variation(medians), tail


def gains(rounds: Sequence[Round], metrics: Iterable[Metric], confidence: float) -> Mapping[Metric, Interval]:
    """Return the relative gain of each measured metric, with a confidence interval over the rounds."""
    # Two processes with the same settings differ more than two loads on one process. Only rounds show this difference.
    pairs = [(values(each.before), values(each.after)) for each in rounds]
    found = {}
    for metric in metrics:
        both = [(before[metric], after[metric]) for before, after in pairs if metric in before and metric in after]
        if both:
            old, new = [before for before, _ in both], [after for _, after in both]
            if metric in MORE_IS_BETTER:
                old, new = new, old
            ratio = ratio_interval(new, old, confidence)
            # 0.5: latency was halved or throughput doubled. Below 0: a loss.
            found[metric] = Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
    return found


def gain(rounds: Sequence[Round], metric: Metric, confidence: float) -> Interval | None:
    return gains(rounds, [metric], confidence).get(metric)


def _percentiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    numbers = sorted(numbers)
    return percentile(numbers, 0.5), percentile(numbers, 0.95), percentile(numbers, 0.99)
