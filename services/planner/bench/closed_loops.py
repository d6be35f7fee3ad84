"""Summarise the closed loops of a bench: measurements with a fixed number of concurrent requests."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.physics.speculation import MAX_GAMMA, acceptance_from_tokens
from services.physics.statistics import median
from services.planner.bench.results import (
    BenchResult,
    ClosedLoopResult,
    RepetitionResult,
    RequestResult,
    RunMeasurements,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeMeasurement:
    """The measurements of one arm at one batch size and prompt length.

    Attributes:
        gamma: Mean number of drafted tokens per step.
        batch: Number of concurrent requests.
        prompt: Mean number of uncached prompt tokens.
        context: Mean number of tokens in the KV cache of a sequence halfway through the answer.
        tau: Mean number of tokens per step; 1 without drafting.
        ttft_ms: Median time to the first token.
        token_ms: Time between tokens of one sequence, while all sequences decode.
        cycle_ms: Time of one step; with drafting, of one draft-and-verify cycle.
        sets: Number of repetitions.
    """

    arm: str
    gamma: float
    batch: int
    prompt: int
    context: int
    tau: float
    ttft_ms: float
    token_ms: float
    cycle_ms: float
    sets: int


def rows(result: BenchResult, *, processor: bool = False) -> tuple[ShapeMeasurement, ...]:
    """Return the measurements of each arm, batch size and prompt length. Failed repetitions are left out.

    With ``processor``, the times are CPU times. They are meaningful only for an engine that computes on one thread.
    """
    found = []
    for name in result.arms:
        shapes: dict[tuple[int, int], list[RepetitionResult]] = {}
        for measured in result.of(name):
            for cell in measured.cells:
                shapes.setdefault((cell.batch, cell.prompt), []).extend(_whole(cell))
        found += [_row(name, batch, sets, processor=processor) for (batch, _), sets in shapes.items() if sets]
    return tuple(sorted(found, key=lambda row: (row.batch, row.prompt, row.gamma)))


def alpha(measured: Iterable[RunMeasurements]) -> float | None:
    """Return the probability that a drafted token is accepted if all tokens before it in the draft are accepted.

    Return None if no tokens were drafted.
    """
    requests = [each for one in measured for each in answered_requests(one) if each.speculation is not None]
    verified, rejected, steps, drafted, accepted = 0, 0, 0, 0, 0
    for each in requests:
        counts = each.speculation
        if counts is None or not counts.drafted:
            continue
        drafted, accepted = drafted + counts.drafted, accepted + counts.accepted
        steps += counts.steps or max(1, each.tokens - counts.accepted)
        gamma = round(counts.drafted / counts.steps) if counts.steps else 0
        # The last step is left out, because the end of the answer truncates it.
        for _, tokens in each.steps[1:-1] if _sees_steps(each) else ():
            verified += min(gamma, tokens - 1)
            rejected += tokens - 1 < gamma
    if verified + rejected:
        return verified / (verified + rejected)
    if not drafted:
        return None
    # The steps were not received separately. So take the alpha for which the expected share of accepted tokens equals
    # the measured share.
    mean_gamma = max(1, min(MAX_GAMMA, round(drafted / steps)))
    return acceptance_from_tokens(1 + min(1.0, accepted / drafted) * mean_gamma, mean_gamma)


def accepted_share(measured: Iterable[RunMeasurements]) -> float | None:
    """Return the number of accepted tokens divided by the number of drafted tokens; None if no tokens were drafted."""
    counts = [each.speculation for one in measured for each in answered_requests(one) if each.speculation is not None]
    drafted = sum(each.drafted for each in counts)
    return sum(each.accepted for each in counts) / drafted if drafted else None


def by_position(measured: Iterable[RunMeasurements]) -> tuple[float, ...]:
    """Return, for each position in a draft, the share of drafts whose token at this position was accepted.

    The result is empty if the engine does not report the positions.
    """
    totals: list[int] = []
    steps = 0
    for one in measured:
        for each in answered_requests(one):
            counts = each.speculation
            if counts is None or not counts.steps:
                continue
            steps += counts.steps
            totals += [0] * (len(counts.accepted_by_position) - len(totals))
            for position, accepted in enumerate(counts.accepted_by_position):
                totals[position] += accepted
    return tuple(count / steps for count in totals) if steps else ()


def answered_requests(measured: RunMeasurements) -> Iterator[RequestResult]:
    for cell in measured.cells:
        for each_set in cell.sets:
            yield from (each for each in each_set.requests if each.answered)
    for stream in measured.streams:
        yield from (each for each in stream.requests if each.answered)


def _whole(cell: ClosedLoopResult) -> list[RepetitionResult]:
    return [
        each
        for each in cell.sets
        if len(each.requests) == cell.batch and all(a.answered and a.token_ms for a in each.requests)
    ]


def _row(arm: str, batch: int, sets: list[RepetitionResult], *, processor: bool) -> ShapeMeasurement:
    requests = [each for one in sets for each in one.requests]
    shares = [min(1.0, one.cores or 1.0) if processor else 1.0 for one in sets]
    prompt = round(_mean([_read(each) for each in requests]))
    prompt_tokens = _mean([each.usage.prompt_tokens if each.usage is not None else 0.0 for each in requests])
    drafting = [each.speculation for each in requests if each.speculation is not None]
    drafted = sum(each.drafted for each in drafting)
    steps = sum(_steps(each) for each in requests)
    tokens = sum(each.tokens - each.steps[0][1] for each in requests)
    tau = tokens / steps if drafted and steps else 1.0
    # N-gram drafts are unevenly spread. Gamma and tau are means over all repetitions, so the times must be means too.
    middle = _mean if drafted and not any(_sees_steps(each) for each in requests) else median
    paces = [_together(each.requests, tau) for each in sets]
    return ShapeMeasurement(
        arm=arm,
        gamma=drafted / steps if steps else 0.0,
        batch=batch,
        prompt=prompt,
        context=round(prompt_tokens + _mean([each.tokens / 2 for each in requests])),
        tau=tau,
        ttft_ms=median([a.ttft_ms * share for one, share in zip(sets, shares, strict=True) for a in one.requests]),
        token_ms=middle([token_ms * share for (token_ms, _), share in zip(paces, shares, strict=True)]),
        cycle_ms=middle([cycle_ms * share for (_, cycle_ms), share in zip(paces, shares, strict=True)]),
        sets=len(sets),
    )


def _together(requests: tuple[RequestResult, ...], tau: float) -> tuple[float, float]:
    begin = max(each.ttft_ms for each in requests)
    end = min(each.steps[-2][0] if len(each.steps) > 1 else 0.0 for each in requests)
    inside = [(at, tokens) for each in requests for at, tokens in each.steps if begin < at <= end]
    if len(inside) < 3 * len(requests):
        mean = _mean([each.token_ms for each in requests if each.token_ms is not None])
        return mean, mean * tau
    token_ms = (end - begin) * len(requests) / sum(tokens for _, tokens in inside)
    seen = any(_sees_steps(each) for each in requests)
    return token_ms, (end - begin) * len(requests) / len(inside) if seen else token_ms * tau


def _steps(each: RequestResult) -> float:
    if _sees_steps(each) or each.speculation is None:
        return len(each.steps) - 1
    # Each step generates one token in addition to the accepted drafted tokens.
    return max(1, each.tokens - each.steps[0][1] - each.speculation.accepted)


def _sees_steps(each: RequestResult) -> bool:
    # If a received message has several tokens, each message is one step of the engine.
    return each.speculation is not None and any(tokens > 1 for _, tokens in each.steps)


def _read(each: RequestResult) -> float:
    return 0.0 if each.usage is None else each.usage.prompt_tokens - each.usage.cached_tokens


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
