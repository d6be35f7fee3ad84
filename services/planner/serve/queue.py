"""Predict the latencies of an engine with continuous batching, by a queueing model with Poisson arrivals.

Prefill is chunked (Agrawal et al., "Sarathi-Serve", 2024). Times are in milliseconds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

StepTime = Callable[[float, float], float]
"""A function from the number of decoded answers and of prefilled prompts, both fractional, to the time of a step."""

MAX_WAITING: Final = 400
"""Maximum number of waiting prompts in the Markov chain. If more wait, latencies are above any limit of interest."""
MAX_ITERATIONS: Final = 400
SETTLED: Final = 1e-7
"""The Markov chain counts as stationary when an iteration changes its distribution by less than this."""
FRACTIONS: Final = 8
"""Number of moments within a step that represent all moments at which a request may arrive."""
SMALLEST: Final = 1e-8
"""Numbers of arrivals in a step that are less probable than this are left out."""
RARE: Final = 1e-6
"""Arrivals that are less probable than this are left out of the distribution of the time to the first token."""
ROUNDED: Final = 0.025
"""Relative error allowed when the prompts that a step prefills are rounded to a whole number of prompt parts."""
MAX_PARTS: Final = 64
"""Maximum number of parts of a prompt. A prompt that needs more is divided into this number."""
FULL: Final = 0.01
"""Maximum share of time in which an engine may be full. Requests that arrive during that time wait for a slot."""
QUANTILES: Final = (0.2, 0.5, 0.8, 0.95)
"""Quantiles that divide the distribution of the number of running answers. Each piece is represented by its mean."""


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """The latencies at one rate of arrivals.

    Attributes:
        ttft: Distribution of the time to the first token. Each pair has a time, and the share of the requests that take
            this time. The shortest time comes first.
        token_ms: Mean time between the tokens of an answer.
        running: Mean number of running answers.
    """

    ttft: tuple[tuple[float, float], ...]
    token_ms: float
    running: float

    def ttft_ms(self, share: float) -> float:
        """Return the time within which ``share`` (0 to 1) of the requests get their first token."""
        reached = 0.0
        for at_ms, weight in self.ttft:
            reached += weight
            if reached >= share:
                return at_ms
        return self.ttft[-1][0]


class PromptParts(NamedTuple):
    prompt: int
    step: int


class Piece(NamedTuple):
    running: float
    share: float
    idle: float


def queue_times(step_ms: StepTime, rate: float, tokens: int, most: float, capacity: int) -> QueueTimes | None:
    """Return the latencies of requests; None if the engine is overloaded.

    Args:
        step_ms: Function that returns the time of a step.
        rate: Arrivals per second.
        tokens: Number of tokens of an answer.
        most: Number of prompts that a step can prefill; below 1 if a prompt takes several steps.
        capacity: Maximum number of answers that run at the same time.
    """
    # Each prompt is divided into equal parts, and a step prefills at most K parts. At the ends of steps, the number q
    # of waiting parts is a Markov chain: q' = q - min(q, K) + the parts that arrive during the step (Bailey, "On
    # queueing processes with bulk service", 1954). The time of a step depends on the number of parts that it prefills
    # (Neuts, 1967). The probability that a request arrives during a step with k parts is proportional to the total time
    # of all such steps (Wolff, PASTA, 1982).
    #
    # If n answers run, each gets one token per step, and a step takes the time s(n). As n changes slowly, it has the
    # distribution of a processor-sharing queue (Kelly, "Reversibility and Stochastic Networks", 1979): P(n) is
    # proportional to the product over i = 1 .. n of rate x mean tokens of an answer x s(i) / i. The Markov chain is
    # solved for several n. With K = 1 and no decoding, this is the queue M/D/1.
    per_ms = rate / 1e3
    pieces = _running(step_ms, per_ms, tokens, most, capacity)
    if pieces is None:
        return None
    mean = sum(piece.running * piece.share for piece in pieces)
    parts = split(most)
    ttft: list[tuple[float, float]] = []
    chain: list[float] | None = None
    later_ms = 0.0
    for running, share, idle in pieces:
        times = [step_ms(running, done / parts.prompt) for done in range(parts.step + 1)]
        found = _stationary(times, per_ms, parts, idle, chain)
        if found is None and running > mean and chain is not None:
            found = chain  # would be an overload, but this number of answers does not last
        if found is None:
            return None
        chain = found
        first, left = _first_tokens(chain, times, per_ms, parts, idle)
        ttft += [(at_ms, weight * share) for at_ms, weight in first]
        # If more prompts wait at a first token than on average at the end of a step, the difference is prefilled while
        # the answer is decoded.
        prompt = (times[-1] - times[0]) / parts.step
        more = left - sum(number * chance for number, chance in enumerate(chain))
        later_ms += share * more * prompt / (1 - per_ms * prompt * parts.prompt)
    token_ms = (mean / per_ms + later_ms) / (tokens - 1) if tokens > 1 else 0.0
    return QueueTimes(tuple(sorted(ttft)), token_ms, per_ms * (tokens - 1) * token_ms)


def split(most: float) -> PromptParts:
    # Take the smallest number of parts per prompt at which a step's budget is nearly a whole number of parts.
    least = min(MAX_PARTS, math.ceil((1 - ROUNDED) / most))
    tried = [PromptParts(count, max(1, round(most * count))) for count in range(least, least + 12)]
    return next(
        (parts for parts in tried if abs(parts.step / (most * parts.prompt) - 1) <= ROUNDED),
        min(tried, key=lambda parts: abs(parts.step / (most * parts.prompt) - 1)),
    )


def _running(
    step_ms: StepTime, per_ms: float, tokens: int, most: float, capacity: int
) -> list[Piece] | None:  # fmt: skip
    if tokens == 1:
        return [Piece(0.0, 1.0, 1.0)] if per_ms * step_ms(0, most) < most else None

    def step(running: int) -> float:
        # With n running answers, a step takes the time s = decode(n) + rate x s x prompt(n), because it also prefills
        # the prompts that arrive meanwhile.
        prompt = (step_ms(running, most) - step_ms(running, 0)) / most
        left = 1 - per_ms * prompt
        return step_ms(running, 0) / left if left > 0 else math.inf

    if per_ms * (tokens - 1) * step(capacity) > capacity:
        return None
    chances, logarithm = [0.0], 0.0
    for running in range(1, capacity + 1):
        logarithm += math.log(per_ms * (tokens - 1) * step(running) / running)
        chances.append(logarithm)
    largest = max(chances)
    weights = [math.exp(each - largest) for each in chances]
    whole, reached = sum(weights), 0.0
    if weights[-1] > FULL * whole:
        return None
    pieces, bounds = [[0.0, 0.0] for _ in (*QUANTILES, 1)], (*QUANTILES, math.inf)
    for running, weight in enumerate(weights):
        piece = next(piece for piece, bound in zip(pieces, bounds, strict=True) if reached < bound)
        piece[0] += running * weight / whole
        piece[1] += weight / whole
        reached += weight / whole
    return [
        Piece(total / share, share, weights[0] / whole / share if number == 0 else 0.0)
        for number, (total, share) in enumerate(pieces)
        if share > 0
    ]


def _arrivals(mean: float) -> list[tuple[int, float]]:
    spread = 6 * math.sqrt(mean) + 6
    first = max(0, int(mean - spread))
    chance = math.exp(-mean + first * math.log(mean) - math.lgamma(first + 1)) if mean > 0 else 1.0
    found = []
    for count in range(first, int(mean + spread) + 2):
        if chance > SMALLEST:
            found.append((count, chance))
        chance *= mean / (count + 1)
    return found


def _stationary(
    times: Sequence[float], per_ms: float, parts: PromptParts, idle: float, like: Sequence[float] | None
) -> list[float] | None:  # fmt: skip
    own, most = parts
    if times[0] * per_ms > 0 and per_ms * times[most] * own >= most:
        return None
    arrivals = [_arrivals(per_ms * time) for time in times]
    size = min(MAX_WAITING * own, 4 * most + 60 * own)
    chain = list(like) if like is not None else [1.0] + [0.0] * size
    for _ in range(MAX_ITERATIONS):
        following = [0.0] * (size + 1)
        for waiting, chance in enumerate(chain):
            if chance < SMALLEST / 10:
                continue
            served = min(waiting, most)
            left = waiting - served
            busy = chance
            if waiting == 0:  # if nothing is decoded, the next step starts when a request arrives
                following[own] += chance * idle
                busy -= chance * idle
            for count, likely in arrivals[served]:
                following[min(size, left + own * count)] += busy * likely
        total = sum(following)
        following = [chance / total for chance in following]
        change = sum(abs(a - b) for a, b in zip(chain, following, strict=True))
        chain = following
        if change < SETTLED:
            break
    return None if chain[-1] > 1e-3 else chain


def _first_tokens(
    chain: Sequence[float], times: Sequence[float], per_ms: float, parts: PromptParts, idle: float
) -> tuple[list[tuple[float, float]], float]:  # fmt: skip
    own, most = parts
    found: list[tuple[float, float]] = []
    left = 0.0

    def add(rest: float, ahead: int, later: int, weight: float) -> None:
        nonlocal left
        full = (ahead + own - 1) // most
        waiting = ahead + own + later + round(own * per_ms * full * times[most]) - full * most
        last = times[min(most, waiting)]
        found.append((rest + full * times[most] + last, weight))
        left += weight * (max(0, waiting - most) + own * per_ms * last)

    arrivals = [[each for each in _arrivals(per_ms * time) if each[1] > RARE] for time in times]
    for waiting, chance in enumerate(chain):
        if chance < RARE:
            continue
        served = min(waiting, most)
        step, busy = times[served], chance
        if waiting == 0:
            add(0.0, 0, 0, chance * idle / per_ms)
            busy -= chance * idle
        for count, likely in arrivals[served]:  # other requests that arrive in this step, before or after it
            if busy * likely < RARE:
                continue
            weight = busy * step * likely / FRACTIONS
            for point in range(FRACTIONS):
                gone = (point + 0.5) / FRACTIONS
                sooner = round(gone * count)
                add((1 - gone) * step, waiting - served + own * sooner, own * (count - sooner), weight)
    whole = sum(weight for _, weight in found)
    return [(at_ms, weight / whole) for at_ms, weight in found], left / whole
