"""Summarise the open loops of a bench: measurements in which requests arrive at a given rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.physics.statistics import Interval, bootstrap, bootstrap_ratio, median, percentile
from services.planner.bench.results import PLAIN, BenchResult, OpenLoopResult, RequestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSlo:
    """The latency limits that a request must meet to count towards the goodput."""

    ttft_ms: float = 200.0
    token_ms: float = 50.0

    def is_met(self, request: RequestResult) -> bool:
        if not request.answered or request.ttft_ms > self.ttft_ms:
            return False
        return request.token_ms is None or request.token_ms <= self.token_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    p50: Interval
    p95: float
    p99: float

    @property
    def tail(self) -> float:
        return self.p99 / self.p50.value if self.p50.value else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """Summary of one arm's open loops: either of all with a warm cache, or of all with a cold cache.

    ``ttft``, ``token`` and ``total`` are percentiles over the answered requests, in milliseconds. They are None if no
    request was answered. ``token`` is also None if every answer came in one piece.

    Attributes:
        cache: ``warm`` if all prompts share a cached prefix, else ``cold``.
        rate: Arriving requests per second.
        ttft: Time from the planned start of a request to its first token.
        token: Mean time between tokens of a request.
        total: Time from the planned start of a request to its last token.
        good: Share of all requests that met the SLO.
        goodput: Requests per second that met the SLO.
        cached: Share of the prompt tokens that were cached.
    """

    arm: str
    cache: str
    rate: float
    requests: int
    errors: int
    ttft: Percentiles | None
    token: Percentiles | None
    total: Percentiles | None
    good: float
    goodput: float
    cached: float


@dataclass(frozen=True, slots=True)
class ArmRatio:
    """The median latency of an arm divided by that of ``plain``, the baseline arm.

    ``ratio`` covers all runs together. ``by_run`` has one ratio for the first runs of the two arms, one for their
    second runs, and so on.
    """

    arm: str
    cache: str
    what: str
    ratio: Interval
    by_run: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``no difference shown``."""
        if self.by_run and self.ratio.high < 1 and max(self.by_run) < 1:
            return "faster"
        if self.by_run and self.ratio.low > 1 and min(self.by_run) > 1:
            return "slower"
        return "no difference shown"


TIMES: dict[str, Callable[[RequestResult], float | None]] = {
    "first token": lambda request: request.ttft_ms,
    "a token": lambda request: request.token_ms,
    "whole answer": lambda request: request.total_ms,
}


def summary(result: BenchResult, slo: BenchSlo) -> tuple[LoadSummary, ...]:
    return tuple(
        _summary(arm, cache, streams, slo)
        for arm in result.arms
        for cache, streams in _streams(result, arm).items()
        if any(stream.requests for stream in streams)
    )


def ratios(result: BenchResult) -> tuple[ArmRatio, ...]:
    plain = _streams(result, PLAIN)
    found = []
    for arm in result.arms:
        for cache, streams in _streams(result, arm).items() if arm != PLAIN else ():
            for what, of in TIMES.items():
                above, below = _times(streams, of), _times(plain.get(cache, []), of)
                if above and below:
                    pairs = zip(streams, plain[cache], strict=False)
                    medians = [(_times([a], of), _times([b], of)) for a, b in pairs]
                    by_run = tuple(median(a) / median(b) for a, b in medians if a and b)
                    found.append(ArmRatio(arm, cache, what, bootstrap_ratio(above, below, median), by_run))
    return tuple(found)


def _streams(result: BenchResult, arm: str) -> dict[str, list[OpenLoopResult]]:
    found: dict[str, list[OpenLoopResult]] = {}
    for measured in result.of(arm):
        for stream in measured.streams:
            found.setdefault(stream.cache, []).append(stream)
    return found


def _summary(arm: str, cache: str, streams: Sequence[OpenLoopResult], slo: BenchSlo) -> LoadSummary:
    requests = [each for stream in streams for each in stream.requests]
    good = sum(map(slo.is_met, requests))
    seconds = sum(_seconds(stream) for stream in streams)
    usages = [each.usage for each in requests if each.usage is not None]
    read = sum(each.prompt_tokens for each in usages)
    first, between, whole = (_spread(_times(streams, of)) for of in TIMES.values())
    return LoadSummary(
        arm=arm,
        cache=cache,
        rate=streams[0].rate,
        requests=len(requests),
        errors=sum(not each.answered for each in requests),
        ttft=first,
        token=between,
        total=whole,
        good=good / len(requests) if requests else 0.0,
        goodput=good / seconds if seconds else 0.0,
        cached=sum(each.cached_tokens for each in usages) / read if read else 0.0,
    )


def _times(streams: Sequence[OpenLoopResult], of: Callable[[RequestResult], float | None]) -> list[float]:
    answered = (each for stream in streams for each in stream.requests if each.answered)
    return [time for each in answered if (time := of(each)) is not None]


def _spread(times: Sequence[float]) -> Percentiles | None:
    if not times:
        return None
    return Percentiles(p50=bootstrap(times, median), p95=percentile(times, 0.95), p99=percentile(times, 0.99))


def _seconds(stream: OpenLoopResult) -> float:
    ends = [each.due_ms + each.total_ms for each in stream.requests]
    begins = [each.due_ms for each in stream.requests]
    return (max(ends) - min(begins)) / 1e3 if ends else 0.0
