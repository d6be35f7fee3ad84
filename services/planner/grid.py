"""The closed loops of a bench as rows to hold a model against. Pure; times in milliseconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.physics.speculation import MOST_DRAFTED, acceptance_from_tokens
from services.planner.results import Asked, Cell, Measured, Result, Set
from services.planner.statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One shape in one arm, all its sets together.

    Attributes:
        arm: Which.
        gamma: Tokens drafted a step, on average.
        batch: Requests at once.
        prompt: Tokens of each prompt that had to be read.
        context: Tokens in a cache when half of the answer is there.
        tau: Tokens a step while drafting; 1 in the plain arm.
        ttft_ms: Median to the first token; None where nothing answered.
        token_ms: Median of the sets: between tokens of one sequence, while all sequences decode.
        cycle_ms: The same between steps, which no luck of the draft shortens.
        sets: How many.
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


def rows(result: Result, *, processor: bool = False) -> tuple[Row, ...]:
    """Sorted by batch, prompt and gamma; shapes where something failed are left out.

    With ``processor`` times are those that the engine had the processor for: what others took of it is left out. That
    is right for an engine that computes on one thread without a pause, and for no other.
    """
    found = []
    for name in result.arms:
        shapes: dict[tuple[int, int], list[Set]] = {}
        for measured in result.of(name):
            for cell in measured.cells:
                shapes.setdefault((cell.batch, cell.prompt), []).extend(_whole(cell))
        found += [_row(name, batch, sets, processor=processor) for (batch, _), sets in shapes.items() if sets]
    return tuple(sorted(found, key=lambda row: (row.batch, row.prompt, row.gamma)))


def alpha(measured: Iterable[Measured]) -> float | None:
    """The chance that a drafted token is accepted, over all answered requests; None when nothing was drafted.

    Where each step of the engine is seen, by maximum likelihood: accepted over looked at. The last step is cut by the
    answer's end and left out. Where it is not seen, the alpha at which the totals are expected.
    """
    requests = [each for one in measured for each in everything(one) if each.speculation is not None]
    kept, refused, steps, drafted, accepted = 0, 0, 0, 0, 0
    for each in requests:
        told = each.speculation
        if told is None or not told.drafted:
            continue
        drafted, accepted = drafted + told.drafted, accepted + told.accepted
        steps += told.steps or max(1, each.tokens - told.accepted)
        gamma = round(told.drafted / told.steps) if told.steps else 0
        for _, tokens in each.steps[1:-1] if _sees_steps(each) else ():
            kept += min(gamma, tokens - 1)
            refused += tokens - 1 < gamma
    if kept + refused:
        return kept / (kept + refused)
    if not drafted:
        return None
    mean_gamma = max(1, min(MOST_DRAFTED, round(drafted / steps)))
    return acceptance_from_tokens(1 + min(1.0, accepted / drafted) * mean_gamma, mean_gamma)


def kept(measured: Iterable[Measured]) -> float | None:
    """The share of drafted tokens that was accepted, over all answered requests; None when nothing was drafted."""
    told = [each.speculation for one in measured for each in everything(one) if each.speculation is not None]
    drafted = sum(each.drafted for each in told)
    return sum(each.accepted for each in told) / drafted if drafted else None


def by_position(measured: Iterable[Measured]) -> tuple[float, ...]:
    """The share of draft steps in which position 1, 2 ... was accepted; empty where the engine does not say."""
    counts: list[int] = []
    steps = 0
    for one in measured:
        for each in everything(one):
            told = each.speculation
            if told is None or not told.steps:
                continue
            steps += told.steps
            counts += [0] * (len(told.accepted_by_position) - len(counts))
            for place, accepted in enumerate(told.accepted_by_position):
                counts[place] += accepted
    return tuple(count / steps for count in counts) if steps else ()


def everything(measured: Measured) -> Iterator[Asked]:
    """Every request that was answered, of closed and open loops."""
    for cell in measured.cells:
        for each_set in cell.sets:
            yield from (each for each in each_set.requests if each.answered)
    for stream in measured.streams:
        yield from (each for each in stream.requests if each.answered)


def _whole(cell: Cell) -> list[Set]:
    return [
        each
        for each in cell.sets
        if len(each.requests) == cell.batch and all(a.answered and a.token_ms for a in each.requests)
    ]


def _row(arm: str, batch: int, sets: list[Set], *, processor: bool) -> Row:
    requests = [each for one in sets for each in one.requests]
    shares = [min(1.0, one.cores or 1.0) if processor else 1.0 for one in sets]
    prompt = round(_mean([_read(each) for each in requests]))
    held = _mean([each.usage.prompt_tokens if each.usage is not None else 0.0 for each in requests])
    drafting = [each.speculation for each in requests if each.speculation is not None]
    drafted = sum(each.drafted for each in drafting)
    steps = sum(_steps(each) for each in requests)
    tokens = sum(each.tokens - each.steps[0][1] for each in requests)
    tau = tokens / steps if drafted and steps else 1.0
    # Looked up tokens come in bursts: gamma and tau are means over all sets, so the times must be too.
    middle = _mean if drafted and not any(_sees_steps(each) for each in requests) else median
    paces = [_together(each.requests, tau) for each in sets]
    return Row(
        arm=arm,
        gamma=drafted / steps if steps else 0.0,
        batch=batch,
        prompt=prompt,
        context=round(held + _mean([each.tokens / 2 for each in requests])),
        tau=tau,
        ttft_ms=median([a.ttft_ms * share for one, share in zip(sets, shares, strict=True) for a in one.requests]),
        token_ms=middle([token_ms * share for (token_ms, _), share in zip(paces, shares, strict=True)]),
        cycle_ms=middle([cycle_ms * share for (_, cycle_ms), share in zip(paces, shares, strict=True)]),
        sets=len(sets),
    )


def _together(requests: tuple[Asked, ...], tau: float) -> tuple[float, float]:
    """Between tokens and between steps of one sequence, from when the last has begun until the first is about to end.

    Where that is too short to tell (fewer than three steps), the mean of the whole answers. Where the engine's steps
    are not seen, a step is ``tau`` tokens.
    """
    begin = max(each.ttft_ms for each in requests)
    end = min(each.steps[-2][0] if len(each.steps) > 1 else 0.0 for each in requests)
    inside = [(at, tokens) for each in requests for at, tokens in each.steps if begin < at <= end]
    if len(inside) < 3 * len(requests):
        mean = _mean([each.token_ms for each in requests if each.token_ms is not None])
        return mean, mean * tau
    token_ms = (end - begin) * len(requests) / sum(tokens for _, tokens in inside)
    seen = any(_sees_steps(each) for each in requests)
    return token_ms, (end - begin) * len(requests) / len(inside) if seen else token_ms * tau


def _steps(each: Asked) -> float:
    """Steps after the first token, those that drafted nothing among them, which an engine may not count.

    Where they are not seen: each gives one token, and what was accepted beside it.
    """
    if _sees_steps(each) or each.speculation is None:
        return len(each.steps) - 1
    return max(1, each.tokens - each.steps[0][1] - each.speculation.accepted)


def _sees_steps(each: Asked) -> bool:
    """Whether a step that came was a step of the engine: some engines send a token at a time whatever they drafted."""
    return each.speculation is not None and any(tokens > 1 for _, tokens in each.steps)


def _read(each: Asked) -> float:
    return 0.0 if each.usage is None else each.usage.prompt_tokens - each.usage.cached_tokens


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
