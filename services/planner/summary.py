"""The open loops of a bench: what people waited, arm against arm. Pure; times in milliseconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.planner.results import PLAIN, Asked, Result, Stream
from services.planner.statistics import Interval, bootstrap, bootstrap_ratio, median, percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must keep to be good.

    Attributes:
        ttft_ms: First token.
        token_ms: Between tokens, on average over the answer.
    """

    ttft_ms: float = 200.0
    token_ms: float = 50.0

    def kept(self, asked: Asked) -> bool:
        """Whether it was answered in time."""
        if not asked.answered or asked.ttft_ms > self.ttft_ms:
            return False
        return asked.token_ms is None or asked.token_ms <= self.token_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of one time.

    Attributes:
        p50: With the ends of its interval.
        p95: Of few requests a guess.
        p99: Still more so: of n requests n/100 lie beyond.
    """

    p50: Interval
    p95: float
    p99: float

    @property
    def tail(self) -> float:
        """p99 over p50."""
        return self.p99 / self.p50.value if self.p50.value else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """One arm under one kind of load, all its runs together.

    Attributes:
        arm: Which.
        cache: ``cold`` or ``warm``.
        rate: Requests a second that came.
        requests: How many.
        errors: Of these, failed.
        ttft: To the first token, from when the request was due; None when nothing was answered.
        token: Between tokens.
        total: To the last.
        good: Share of all that kept the SLO.
        goodput: Requests a second that kept it.
        cached: Share of prompt tokens that were cached, as the engine says.
    """

    arm: str
    cache: str
    rate: float
    requests: int
    errors: int
    ttft: Spread | None
    token: Spread | None
    total: Spread | None
    good: float
    goodput: float
    cached: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """An arm's median over the plain arm's; below 1 it is faster. The load is the same, request by request.

    ``by_run`` holds the same for each pair of runs: what drifted between runs is in none of the intervals.
    """

    arm: str
    cache: str
    what: str
    ratio: Interval
    by_run: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """A difference is one when the interval and every pair of runs say so."""
        if self.by_run and self.ratio.high < 1 and max(self.by_run) < 1:
            return "faster"
        if self.by_run and self.ratio.low > 1 and min(self.by_run) > 1:
            return "slower"
        return "no difference shown"


TIMES: dict[str, Callable[[Asked], float | None]] = {
    "first token": lambda asked: asked.ttft_ms,
    "a token": lambda asked: asked.token_ms,
    "whole answer": lambda asked: asked.total_ms,
}


def summary(result: Result, slo: Slo) -> tuple[Waited, ...]:
    """One for each arm and kind of load."""
    return tuple(
        _waited(arm, cache, streams, slo)
        for arm in result.arms
        for cache, streams in _streams(result, arm).items()
        if any(stream.requests for stream in streams)
    )


def ratios(result: Result) -> tuple[Ratio, ...]:
    """Every other arm against the plain one."""
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
                    found.append(Ratio(arm, cache, what, bootstrap_ratio(above, below, median), by_run))
    return tuple(found)


def _streams(result: Result, arm: str) -> dict[str, list[Stream]]:
    found: dict[str, list[Stream]] = {}
    for measured in result.of(arm):
        for stream in measured.streams:
            found.setdefault(stream.cache, []).append(stream)
    return found


def _waited(arm: str, cache: str, streams: Sequence[Stream], slo: Slo) -> Waited:
    requests = [each for stream in streams for each in stream.requests]
    good = sum(map(slo.kept, requests))
    seconds = sum(_seconds(stream) for stream in streams)
    usages = [each.usage for each in requests if each.usage is not None]
    read = sum(each.prompt_tokens for each in usages)
    first, between, whole = (_spread(_times(streams, of)) for of in TIMES.values())
    return Waited(
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


def _times(streams: Sequence[Stream], of: Callable[[Asked], float | None]) -> list[float]:
    answered = (each for stream in streams for each in stream.requests if each.answered)
    return [time for each in answered if (time := of(each)) is not None]


def _spread(times: Sequence[float]) -> Spread | None:
    if not times:
        return None
    return Spread(p50=bootstrap(times, median), p95=percentile(times, 0.95), p99=percentile(times, 0.99))


def _seconds(stream: Stream) -> float:
    """From the first request that was due until the last was over."""
    ends = [each.due_ms + each.total_ms for each in stream.requests]
    begins = [each.due_ms for each in stream.requests]
    return (max(ends) - min(begins)) / 1e3 if ends else 0.0
