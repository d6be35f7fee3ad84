"""The queue in front of an engine with continuous batching: a bulk-service queue. Pure; times in milliseconds.

In each step the engine decodes one token of every running answer, and prefills as many waiting prompt tokens as its
budget holds; the last prompt of a step may get a part of itself (chunked prefill: Agrawal et al., "Sarathi-Serve",
2024). Requests arrive at random (Poisson). Prompts are counted in equal parts, so that a step takes a whole number K of
them. Seen at the ends of steps, the number of waiting parts is a Markov chain: q' = q - min(q, K) + the parts that
arrive during the step (Bailey, "On queueing processes with bulk service", 1954; Neuts 1967, whose service time depends
on the number served, as a step's does on its prompts). An arriving request meets a step of a kind in proportion to its
time (Wolff, PASTA, 1982), and waits for its rest and for the steps up to its own last part.

The running answers share the engine: with n of them each gets a token in every step s(n), and n changes slowly beside
the waiting prompts. So n has the distribution of a processor-sharing queue whose speed depends on n, P(n) in proportion
to the product of rate x tokens x s(i) / i, which holds for answers of any lengths (Kelly, "Reversibility and Stochastic
Networks", 1979), and the chain is solved for several n. When nothing runs or waits, the engine is idle. With K = 1 and
no decoding this is the queue M/D/1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

StepTime = Callable[[float, float], float]
"""The time of a step that decodes so many answers and prefills so many prompts; parts of a prompt count."""

MAX_WAITING: Final = 400
"""Maximum number of waiting prompts in the chain. An engine with more is overloaded for any limit of interest."""
MAX_ITERATIONS: Final = 400
SETTLED: Final = 1e-7
"""The chain counts as stationary when its distribution changes by less than this."""
FRACTIONS: Final = 8
"""Points within a step at which a request may arrive."""
SMALLEST: Final = 1e-8
"""Probability below which a number of arrivals is left out."""
RARE: Final = 1e-6
"""Probability below which an arrival is left out of the distribution of first tokens."""
ROUNDED: Final = 0.025
"""Relative error allowed when a step's budget is rounded to a whole number of parts."""
MAX_PARTS: Final = 64
"""Most parts of a prompt; a prompt that needs more is treated as if it had this many."""
FULL: Final = 0.01
"""Largest share of time in which an engine may be full, when arriving requests wait for a slot."""
QUANTILES: Final = (0.2, 0.5, 0.8, 0.95)
"""Quantiles at which the distribution of the running answers is divided; each piece is represented by its mean."""


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """The latencies at one rate of arrivals.

    Attributes:
        ttft: First tokens in order of time: pairs of milliseconds and the share of requests that have it.
        token_ms: Mean time between the tokens of an answer.
        running: Mean number of answers that are decoded.
    """

    ttft: tuple[tuple[float, float], ...]
    token_ms: float
    running: float

    def ttft_ms(self, share: float) -> float:
        """Return the time within which this share of requests has its first token."""
        reached = 0.0
        for at_ms, weight in self.ttft:
            reached += weight
            if reached >= share:
                return at_ms
        return self.ttft[-1][0]


class PromptParts(NamedTuple):
    """A prompt in parts: how many it has, and how many a step takes."""

    prompt: int
    step: int


class Piece(NamedTuple):
    """A number of running answers, the share of time with about this number, and the part of that time with none."""

    running: float
    share: float
    idle: float


def queue_times(step_ms: StepTime, rate: float, tokens: int, most: float, capacity: int) -> QueueTimes | None:
    """Return the requests' latencies; None if the engine cannot keep up, or would run too many answers.

    Args:
        step_ms: The engine's time of a step.
        rate: Arrivals per second.
        tokens: Tokens of an answer.
        most: Prompts that a step may prefill; below 1 for a prompt that takes several steps.
        capacity: Answers that may run at once.
    """
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
            found = chain  # more than the engine can take for ever; it has so many for a while only
        if found is None:
            return None
        chain = found
        first, left = _first_tokens(chain, times, per_ms, parts, idle)
        ttft += [(at_ms, weight * share) for at_ms, weight in first]
        # Where more prompts wait at a first token than at the end of any step, they are prefilled beside its answer.
        prompt = (times[-1] - times[0]) / parts.step
        more = left - sum(number * chance for number, chance in enumerate(chain))
        later_ms += share * more * prompt / (1 - per_ms * prompt * parts.prompt)
    token_ms = (mean / per_ms + later_ms) / (tokens - 1) if tokens > 1 else 0.0
    return QueueTimes(tuple(sorted(ttft)), token_ms, per_ms * (tokens - 1) * token_ms)


def split(most: float) -> PromptParts:
    """Return the smallest number of parts per prompt at which a step's budget is nearly a whole number of parts."""
    least = min(MAX_PARTS, math.ceil((1 - ROUNDED) / most))
    tried = [PromptParts(count, max(1, round(most * count))) for count in range(least, least + 12)]
    return next(
        (parts for parts in tried if abs(parts.step / (most * parts.prompt) - 1) <= ROUNDED),
        min(tried, key=lambda parts: abs(parts.step / (most * parts.prompt) - 1)),
    )


def _running(
    step_ms: StepTime, per_ms: float, tokens: int, most: float, capacity: int
) -> list[Piece] | None:  # fmt: skip
    """Return the distribution of the number of running answers in a few classes; None if it has no limit.

    A step takes the time to decode, and that of the prompts that arrive in it: s = decode(n) + rate s prompt(n).
    """
    if tokens == 1:
        return [Piece(0.0, 1.0, 1.0)] if per_ms * step_ms(0, most) < most else None

    def step(running: int) -> float:
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
    """Return counts of Poisson arrivals with their probabilities, without counts that are too unlikely to matter."""
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
    """Return the probability of each number of waiting parts at the start of a step; None if the queue grows.

    The iteration begins with ``like``, the chain of nearly the same queue.
    """
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
            if waiting == 0:  # with nothing to decode, the next step begins when a request arrives
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
    """Return the distribution of the time to the first token, and the mean number of waiting parts.

    This time consists of the wait and the steps that prefill the request's own prompt.
    """
    own, most = parts
    found: list[tuple[float, float]] = []
    left = 0.0

    def add(rest: float, ahead: int, later: int, weight: float) -> None:
        """Add a request with this many parts ahead of it; later parts fill up its last step."""
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
        for count, likely in arrivals[served]:  # the others that arrive in this step, sooner or later
            if busy * likely < RARE:
                continue
            weight = busy * step * likely / FRACTIONS
            for point in range(FRACTIONS):
                gone = (point + 0.5) / FRACTIONS
                sooner = round(gone * count)
                add((1 - gone) * step, waiting - served + own * sooner, own * (count - sooner), weight)
    whole = sum(weight for _, weight in found)
    return [(at_ms, weight / whole) for at_ms, weight in found], left / whole
