"""The queue in front of an engine with continuous batching: a bulk-service queue. Pure; times in milliseconds.

In each step the engine decodes one token of every running answer, and prefills at most K waiting prompts, as many as
its token budget holds. Requests arrive at random (Poisson). Seen at the ends of steps, the number of waiting prompts is
a Markov chain: q' = q - min(q, K) + the arrivals during the step (Bailey, "On queueing processes with bulk service",
1954; Neuts 1967, whose service time depends on the number served, as a step's does on its prompts). An arriving request
meets a step of a kind in proportion to its time (Wolff, PASTA, 1982), and waits for its rest and for the steps up to
its own.

The number of running answers is taken at its mean, by Little's law (1961): rate x tokens x time of a step. When none is
running or waiting, the engine is idle. With K = 1 and no decoding this is the queue M/D/1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

StepTime = Callable[[float, int], float]
"""The time of a step that decodes so many answers and prefills so many prompts."""

MAX_WAITING: Final = 400
"""Waiting prompts that are followed; an engine with more is overloaded for any limit of interest."""
MAX_ITERATIONS: Final = 400
SETTLED: Final = 1e-7
"""Change of the chain's distribution from which on it counts as stationary."""
FRACTIONS: Final = 8
"""Points within a step at which a request may arrive."""
SMALLEST: Final = 1e-8
"""Chance below which a number of arrivals is left out."""


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """What requests see at one rate of arrivals.

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


def queue_times(step_ms: StepTime, rate: float, tokens: int, most: int, capacity: int) -> QueueTimes | None:
    """Return what requests see; None if the engine cannot keep up, or would run more answers than it may.

    Args:
        step_ms: The engine's time of a step.
        rate: Arrivals per second.
        tokens: Tokens of an answer.
        most: Prompts that a step may prefill.
        capacity: Answers that may run at once.
    """
    per_ms = rate / 1e3
    found = _balance(step_ms, per_ms, tokens, most, capacity)
    if found is None:
        return None
    running, token_ms, busy = found
    times = [step_ms(running, prompts) for prompts in range(most + 1)]
    idle = math.exp(-running)
    chain = _stationary(times, per_ms, most, idle)
    if chain is None:
        return None
    ttft = _first_tokens(chain, times, per_ms, most, idle)
    if tokens > 1:
        # The prompts that arrived while this one waited and was prefilled come after it, while its answer is decoded.
        mean = sum(at_ms * weight for at_ms, weight in ttft)
        token_ms += busy * mean / (tokens - 1) / (1 - busy)
    return QueueTimes(ttft, token_ms, running)


def _balance(
    step_ms: StepTime, per_ms: float, tokens: int, most: int, capacity: int
) -> tuple[float, float, float] | None:  # fmt: skip
    """Return running answers, mean step and the share of prompts in it, where arrivals and ends are in balance.

    A step takes the time to decode, and that of the prompts that arrive in it: s = decode(n) + rate s prompt(n), and
    n = rate (tokens - 1) s. The right side grows with n, so a bisection finds the least solution.
    """

    def needed(running: float) -> tuple[float, float, float]:
        decode = step_ms(running, 0) if running > 0 else 0.0
        prompt = (step_ms(running, most) - step_ms(running, 0)) / most
        rest = 1 - per_ms * prompt
        if rest <= 0:
            return math.inf, math.inf, 1.0
        step = max(decode, step_ms(min(running, 1.0), 0) if tokens > 1 else 0.0) / rest
        return per_ms * (tokens - 1) * step, step, 1 - rest

    low, high = 0.0, float(capacity)
    if needed(high)[0] > high:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle)[0] > middle else (low, middle)
    return high, *needed(high)[1:]


def _arrivals(mean: float) -> list[tuple[int, float]]:
    """Return the numbers of Poisson arrivals that matter, with their chances."""
    spread = 6 * math.sqrt(mean) + 6
    first = max(0, int(mean - spread))
    chance = math.exp(-mean + first * math.log(mean) - math.lgamma(first + 1)) if mean > 0 else 1.0
    found = []
    for count in range(first, int(mean + spread) + 2):
        if chance > SMALLEST:
            found.append((count, chance))
        chance *= mean / (count + 1)
    return found


def _stationary(times: Sequence[float], per_ms: float, most: int, idle: float) -> list[float] | None:
    """Return the chances of each number of waiting prompts at the start of a step; None if it grows."""
    if times[0] * per_ms > 0 and per_ms * times[most] >= most:
        return None
    arrivals = [_arrivals(per_ms * time) for time in times]
    size = min(MAX_WAITING, 4 * most + 60)
    chain = [1.0] + [0.0] * size
    for _ in range(MAX_ITERATIONS):
        following = [0.0] * (size + 1)
        for waiting, chance in enumerate(chain):
            if chance < SMALLEST / 10:
                continue
            served = min(waiting, most)
            left = waiting - served
            busy = chance
            if waiting == 0:  # with nothing to decode, the next step begins when a request arrives
                following[1] += chance * idle
                busy -= chance * idle
            for count, likely in arrivals[served]:
                following[min(size, left + count)] += busy * likely
        total = sum(following)
        following = [chance / total for chance in following]
        change = sum(abs(a - b) for a, b in zip(chain, following, strict=True))
        chain = following
        if change < SETTLED:
            break
    return None if chain[-1] > 1e-3 else chain


def _first_tokens(
    chain: Sequence[float], times: Sequence[float], per_ms: float, most: int, idle: float
) -> tuple[tuple[float, float], ...]:  # fmt: skip
    """Return the distribution of the time to the first token: wait, and the step with one's own prompt."""
    found: list[tuple[float, float]] = []
    for waiting, chance in enumerate(chain):
        if chance < SMALLEST:
            continue
        served = min(waiting, most)
        step, busy = times[served], chance
        if waiting == 0:
            found.append((times[1], chance * idle / per_ms))
            busy -= chance * idle
        for point in range(FRACTIONS):
            gone = (point + 0.5) / FRACTIONS
            rest = (1 - gone) * step
            for count, likely in _arrivals(per_ms * step):  # the others that arrive in this step, sooner or later
                behind = waiting - served + count
                full = (waiting - served + round(gone * count)) // most
                last = times[max(1, min(most, behind + 1 - full * most))]
                found.append((rest + full * times[most] + last, busy * step * likely / FRACTIONS))
    whole = sum(weight for _, weight in found)
    return tuple(sorted((at_ms, weight / whole) for at_ms, weight in found))
