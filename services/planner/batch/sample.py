"""Predict the time of a batch job from a sample: some of the job's prompts, run on the job's engine.

The prompts are run in several closed loops. A closed loop is a load test with a constant number of concurrent requests.
Times are in milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Final

import msgspec

from services.planner.batch.ways import LAW_ERROR, BatchJob, Range, Way
from services.planner.bench.results import RequestResult, SampleResult

ROUNDS: Final = 40
"""Number of rounds of the fixed-point iteration that separates the time of a prompt from the fixed time of a step."""

LEAST_ERROR: Final = 0.01
"""Minimum relative error of a loop. A repetition an hour later on the same machine differs at least by so much."""

PARTS: Final = 8
"""Number of equal intervals of time into which a loop is divided. The loop's error is computed from the spread of the
numbers of tokens per interval."""


@dataclass(frozen=True, slots=True)
class SampledLoop:
    """The measurements of a closed loop with a fixed number of concurrent requests.

    Attributes:
        at_once: Number of concurrent requests.
        each_ms: Inverse of the throughput, in milliseconds per answer.
        error: Relative standard error of ``each_ms``.
        new: Mean number of uncached prompt tokens of a request.
        prompt: Mean number of prompt tokens of a request.
        output: Mean number of tokens of an answer.
        token_ms: Mean time between the tokens of an answer; 0 if every answer has one token.
        lengths: The number of tokens of each answer.
    """

    at_once: int
    each_ms: float
    error: float
    new: float
    prompt: float
    output: float
    ttft_ms: float
    token_ms: float
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampledEngine:
    """The times of an engine, fitted to a sample.

    Attributes:
        loops: The measurements, by rising number of concurrent requests.
        fixed_ms: Fixed part of the time of a decode step.
        token_prompt_ms: Time of a prefill for each uncached prompt token.
        request_ms: Fixed part of the time of a prefill.
        steps: Pairs: the number of sequences in a decode step, and the time of this step in milliseconds.
    """

    loops: tuple[SampledLoop, ...]
    fixed_ms: float
    token_prompt_ms: float
    request_ms: float
    steps: tuple[tuple[int, float], ...]

    @property
    def at_once(self) -> int:
        return self.loops[-1].at_once

    @property
    def new(self) -> float:
        return fmean(loop.new for loop in self.loops[1:])

    @property
    def prompt(self) -> float:
        return fmean(loop.prompt for loop in self.loops[1:])  # the same loops as in ``new``

    def output(self, max_tokens: int) -> float:
        """Return the mean number of tokens of the sampled answers.

        An answer of more than ``max_tokens`` tokens counts as ``max_tokens`` tokens.
        """
        return fmean(min(max_tokens, length) for loop in self.loops for length in loop.lengths)

    def step_ms(self, running: int) -> float:
        return _between(((0, self.fixed_ms), *self.steps), running)

    def each_ms(self, at_once: int, new: float, output: float) -> float:
        """Predict the inverse of the throughput, in milliseconds per answer.

        ``at_once`` is the number of concurrent requests. ``new`` is the number of uncached prompt tokens of a request.
        ``output`` is the number of tokens of an answer.
        """
        # The speed of the machine may have changed during the sample. A factor makes the result for each measured
        # number of concurrent requests equal to the measurement.
        ratios = [
            (loop.at_once, loop.each_ms / self._parts_ms(loop.at_once, loop.new, loop.output))
            for loop in self.loops[1:]
        ]
        return self._parts_ms(at_once, new, output) * _between(((1, 1.0), *ratios), min(at_once, self.at_once))

    def _parts_ms(self, at_once: int, new: float, output: float) -> float:
        fixed = self.fixed_ms if at_once == 1 else 0.0  # else the prompt shares a step with other answers
        # The time of the prompt, plus one request's share of the decode steps.
        prompt = self.request_ms + self.token_prompt_ms * new + fixed
        return prompt + (output - 1) * self.step_ms(at_once) / at_once

    def hours(self, requests: int, at_once: int, output: float, *, new: float | None = None) -> Range:
        """Predict how many hours the engine takes to answer all requests, as an interval.

        ``requests`` is the number of requests, and ``at_once`` is how many of them run at once. ``output`` is the
        number of tokens of an answer. ``new`` is the number of uncached prompt tokens of a request; None means as many
        as in the sample.
        """
        new = self.new if new is None else new
        value = requests * self.each_ms(at_once, new, output) / 3.6e6
        nearest = min(self.loops, key=lambda loop: abs(loop.at_once - at_once))
        same = nearest.at_once == at_once and abs(nearest.output - output) < 0.02 * output
        law = 0.0 if same and new == self.new else LAW_ERROR
        # The interval also covers ``LAW_ERROR`` if the requests differ from the sampled ones.
        wide = 2 * nearest.error + law
        return Range(value, value / (1 + wide), value * (1 + wide))


def sampled_loop(result: SampleResult) -> SampledLoop:
    """Summarise a closed-loop load test.

    Raises:
        ValueError: Too few requests were answered, or every answer came in one piece.
    """
    found = [_counted(each) for each in result.requests if each.answered]
    if len(found) < max(4, 2 * result.at_once + 1, len(result.requests) / 2):
        raise ValueError(
            f"{len(found)} of {len(result.requests)} requests were answered with {result.at_once} at once: too few to "
            "plan by; give more prompts, or fewer at once (--at-once)"
        )
    paces = [pace for each in found if (pace := each.token_ms) is not None]
    if not paces and any(each.tokens > 1 for each in found):
        raise ValueError(
            "every answer came in one piece, so the time of a token is unknown: use an engine that streams"
        )
    # With N concurrent requests, all N slots are in use from the end of the Nth answer to the start of the last
    # request. Tokens are counted instead of answers, because answers of equal length end at the same time.
    ends = sorted(each.due_ms + each.total_ms for each in found)
    begin, end = (0.0, ends[-1]) if result.at_once == 1 else (ends[result.at_once - 1], max(r.due_ms for r in found))
    output = fmean(each.tokens for each in found)
    counts = [0] * PARTS
    for each in found:
        for at_ms, tokens in each.steps:
            share = (each.due_ms + at_ms - begin) / (end - begin)
            if 0 < share <= 1:
                counts[min(PARTS - 1, int(share * PARTS))] += tokens
    return SampledLoop(
        at_once=result.at_once,
        each_ms=output * (end - begin) / sum(counts),
        error=max(LEAST_ERROR, stdev(counts) / fmean(counts) / PARTS**0.5),
        new=fmean(_new(each) for each in found),
        prompt=fmean(0 if each.usage is None else each.usage.prompt_tokens for each in found),
        output=output,
        ttft_ms=fmean(each.ttft_ms for each in found),
        token_ms=fmean(paces) if paces else 0.0,
        lengths=tuple(each.tokens for each in found),
    )


def _loop(results: Sequence[SampleResult], at_once: int) -> SampledLoop:
    loops: list[SampledLoop] = []
    faults: list[ValueError] = []
    for result in results:
        if result.at_once == at_once:
            try:
                loops.append(sampled_loop(result))
            except ValueError as fault:
                faults.append(fault)
    if not loops:
        raise faults[0]
    if len(loops) == 1:
        return loops[0]

    def mean(of: Callable[[SampledLoop], float]) -> float:
        return fmean(map(of, loops), weights=[len(loop.lengths) for loop in loops])

    each_ms = mean(lambda loop: loop.each_ms)
    between = stdev(loop.each_ms for loop in loops) / each_ms
    return SampledLoop(
        at_once=at_once,
        each_ms=each_ms,
        error=max(LEAST_ERROR, max(between, mean(lambda loop: loop.error)) / len(loops) ** 0.5),
        new=mean(lambda loop: loop.new),
        prompt=mean(lambda loop: loop.prompt),
        output=mean(lambda loop: loop.output),
        ttft_ms=mean(lambda loop: loop.ttft_ms),
        token_ms=mean(lambda loop: loop.token_ms),
        lengths=tuple(length for loop in loops for length in loop.lengths),
    )


def sampled_engine(results: Sequence[SampleResult]) -> SampledEngine:
    """Compute the times that an engine takes for a prefill and for a decode step, from a sample of measurements.

    The sample must include a closed-loop test with one request at a time, and a closed-loop test with several
    concurrent requests.

    Raises:
        ValueError: One of these tests is missing, has too few answers, or received every answer in one piece.
    """
    loops = tuple(_loop(results, number) for number in sorted({each.at_once for each in results}))
    if not loops or loops[0].at_once != 1 or len(loops) < 2:
        raise ValueError("the sample needs a loop of one at a time, and one of more")
    alone = loops[0]
    slope = _prompt_slope([request for each in results if each.at_once == 1 for request in each.requests])
    fixed_ms = 0.0
    steps: list[tuple[int, float]] = []
    for _ in range(ROUNDS):
        prompt_ms = max(0.0, alone.ttft_ms - fixed_ms)  # without the step's fixed part, shared by concurrent requests
        steps = [(1, alone.token_ms)]
        for loop in loops[1:]:
            share = prompt_ms * loop.new / alone.new if alone.new else prompt_ms
            decode = max(alone.token_ms * (loop.output - 1) / loop.at_once, loop.each_ms - share)  # step(n) >= step(1)
            steps.append((loop.at_once, decode * loop.at_once / max(1.0, loop.output - 1)))
        (one, one_ms), (more, more_ms) = steps[:2]
        rising = max(0.0, (more_ms - one_ms) / (more - one))
        fixed_ms = (fixed_ms + max(0.0, one_ms - rising * one)) / 2
    prompt_ms = max(0.0, alone.ttft_ms - fixed_ms)
    per_token = prompt_ms / alone.new if alone.new else 0.0
    token_ms = per_token if slope is None else min(slope, per_token)
    return SampledEngine(loops, fixed_ms, token_ms, prompt_ms - token_ms * alone.new, tuple(steps))


def _between(points: Sequence[tuple[int, float]], at: int) -> float:
    for (low, low_value), (high, high_value) in pairwise(points):
        if at <= high or high == points[-1][0]:
            return low_value + (high_value - low_value) * (at - low) / (high - low)
    raise AssertionError("there are at least two points")


def _counted(request: RequestResult) -> RequestResult:
    # A server may send several tokens in one piece, and report the number of all tokens at the end. That number is then
    # distributed over the pieces.
    whole, pieces = 0 if request.usage is None else request.usage.completion_tokens, request.tokens
    if whole <= pieces:
        return request
    steps: list[tuple[float, int]] = []
    seen = given = 0
    for at_ms, tokens in request.steps:
        seen += tokens
        steps.append((at_ms, round(whole * seen / pieces) - given))
        given += steps[-1][1]
    return msgspec.structs.replace(request, steps=tuple(steps))


def _new(request: RequestResult) -> float:
    return 0.0 if request.usage is None else request.usage.prompt_tokens - request.usage.cached_tokens


def _prompt_slope(requests: Sequence[RequestResult]) -> float | None:
    found = [(_new(each), each.ttft_ms) for each in requests if each.answered]
    mean, mean_ms = fmean(new for new, _ in found), fmean(at_ms for _, at_ms in found)
    spread = sum((new - mean) ** 2 for new, _ in found)
    if spread < len(found) * (0.1 * max(1.0, mean)) ** 2:
        return None
    return max(0.0, sum((new - mean) * (at_ms - mean_ms) for new, at_ms in found) / spread)


def measured_ways(job: BatchJob, engine: SampledEngine, name: str, score: float | None, per_hour: float) -> list[Way]:
    """Return ways to run the job on the engine that ran the sample, with predicted time and cost.

    The ways differ in the number of concurrent requests and in the length of the answers. If more than about 5 % of the
    sample's prompt tokens were cached, the list ends with a prediction for prompts without cached tokens.
    """
    full, cap = engine.at_once, job.work.output
    numbers = dict.fromkeys((full, max(2, full // 2), 1))
    found: list[tuple[str, int, float, float | None]] = [
        (f"{at_once} at once{what}", at_once, engine.output(tokens), None)
        for what, tokens in (("", cap), (", half the output", max(1, cap // 2)))
        for at_once in numbers
    ]
    if engine.prompt > 1.05 * engine.new:
        found.append((f"{full} at once, prefix not cached", full, engine.output(cap), engine.prompt))
    ways = []
    for what, at_once, output, new in found:
        hours = engine.hours(job.work.requests, at_once, output, new=new)
        ways.append(
            Way(
                name=f"{name}, {what}", kind="measured", hours=hours, money=hours.times(per_hour),
                per_second=job.work.requests / hours.value / 3_600, score=score,
                quality="as sampled" + (", shorter answers" if "half" in what else ""), complexity="low",
                why=f"{output:.0f} tokens, a step takes {engine.step_ms(at_once):.1f} ms",
            )
        )  # fmt: skip
    return ways
