"""Fit those constants of the performance model that are not in any data sheet. Times are in milliseconds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import Efficiency, practical
from services.physics.roofline import prefill_flop, step_ms
from services.physics.speculation import OVERHEAD
from services.physics.statistics import median
from services.planner.bench.closed_loops import ShapeMeasurement

MAX_ROUNDS: Final = 600
"""Maximum number of iterations of the search. The search ends earlier if the losses of all points of the
simplex differ by less than ``TOLERANCE``."""
TOLERANCE: Final = 1e-9
MAX_STEPS: Final = 256
"""Maximum number of steps in which a prefill is simulated. A longer prefill gets larger steps."""
ROOFLINE_PRIOR_WEIGHT: Final = 1e-3
"""Weight of the prior (``_prior_loss``). The prior favours fits whose costs beyond the roofline are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRoofline:
    """A performance model of an engine, with constants that are fitted to measurements.

    Attributes:
        draft: Draft model; None with n-gram drafting.
        budget: Maximum number of prompt tokens in one step.
        flops: Share of the data sheet's arithmetic rate that the engine reaches.
        bandwidth: Share of the data sheet's memory bandwidth that the engine reaches.
        layer_us: Fixed time of each layer in a step, in microseconds.
        first_ms: Time to the first token, minus the prefill.
        token_ms: Milliseconds by which each decoded or verified token lengthens a step. The first token of a step
            adds nothing.
        draft_cost: Correction factor for the time of a draft step.
        overhead: Time of a draft-and-verify cycle outside its draft and verify steps, divided by the time of a plain
            step.
    """

    target: Model
    draft: Model | None
    precision: Precision
    gpu: Gpu
    budget: int
    flops: float = 0.5
    bandwidth: float = 0.75
    layer_us: float = 1.0
    first_ms: float = 0.0
    token_ms: float = 0.0
    draft_cost: float = 1.0
    overhead: float = OVERHEAD
    _machine: tuple[Gpu, Efficiency] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_machine", self._achieved())  # computed once, because a fit uses it a hundred times

    def ttft_ms(self, batch: int, prompt: int, gamma: float = 0.0) -> float:
        if prompt < 1:
            return self.first_ms
        left, budget = batch * prompt, max(1, self.budget, batch * prompt // MAX_STEPS)
        flop, spent, read = prefill_flop(self.target, prompt) / prompt, 0.0, 0
        ends: list[float] = []
        while left > 0:
            tokens = min(left, budget)
            spent += self._prefill_step_ms(tokens, tokens * flop, prompt, decoding=read // prompt, gamma=gamma)
            read, left = read + tokens, left - tokens
            ends += [spent] * (read // prompt - len(ends))
        return self.first_ms + median(ends)

    def step_ms(self, batch: int, context: int, positions: float = 1.0) -> float:
        gpu, constants = self._machine
        step = step_ms(
            self.target, gpu, self.precision,
            batch=batch, context=context, positions=positions, efficiency=constants,
        )  # fmt: skip
        return step + self.token_ms * (batch * positions - 1)

    def mixed_step_ms(self, batch: int, context: int, prompts: float, prompt: int) -> float:
        """Return the time of a step that decodes ``batch`` sequences and prefills ``prompts`` prompts.

        ``prompts`` may be a fraction: 0.5 is half of a prompt. ``prompt`` is the number of tokens of a prompt.
        """
        gpu, constants = self._machine
        step = step_ms(
            self.target, gpu, self.precision,
            batch=batch, context=context, prefill_flop=prompts * prefill_flop(self.target, prompt),
            prefill_tokens=round(prompts * prompt), efficiency=constants,
        )  # fmt: skip
        return step + self.token_ms * max(0, batch - 1) + (self.first_ms if prompts else 0.0)

    def cycle_ms(self, batch: int, context: int, gamma: float) -> float:
        """Return the time of ``gamma`` draft steps, the verify step and the overhead.

        If ``gamma`` is 0, return the time of a plain step.
        """
        plain = self.step_ms(batch, context)
        if gamma <= 0:
            return plain
        drafting = gamma * self.draft_ms(batch, context) + self.overhead * plain if self.draft is not None else 0.0
        return self.step_ms(batch, context, gamma + 1) + drafting

    def draft_ms(self, batch: int, context: int) -> float:
        if self.draft is None:
            return 0.0
        gpu, constants = self._machine
        step = step_ms(self.draft, gpu, self.precision, batch=batch, context=context, efficiency=constants)
        return self.draft_cost * step

    def token_ms_at(self, row: ShapeMeasurement, tau: float) -> float:
        return self.cycle_ms(row.batch, row.context, row.gamma) / tau

    def _prefill_step_ms(self, tokens: int, flop: float, prompt: int, *, decoding: int, gamma: float) -> float:
        gpu, constants = self._machine
        step = step_ms(
            self.target, gpu, self.precision,
            batch=decoding, context=prompt, positions=gamma + 1,
            prefill_flop=flop, prefill_tokens=tokens, efficiency=constants,
        )  # fmt: skip
        if decoding and gamma > 0 and self.draft is not None:
            step += gamma * self.draft_ms(decoding, prompt) + self.overhead * self.step_ms(decoding, prompt)
        return step

    def _achieved(self) -> tuple[Gpu, Efficiency]:
        # A fitted share may be above 1, so it is put into the rates of the accelerator.
        known = practical(self.gpu)
        arithmetic, memory = self.flops / known.flops, self.bandwidth / known.bandwidth
        fp8 = None if self.gpu.flops_fp8 is None else self.gpu.flops_fp8 * arithmetic
        gpu = replace(
            self.gpu,
            bandwidth=self.gpu.bandwidth * memory,
            flops_bf16=self.gpu.flops_bf16 * arithmetic,
            flops_fp8=fp8,
        )
        return gpu, replace(known, layer_us=self.layer_us, sequence_us=0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    row: ShapeMeasurement
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


TokensPerCycle = Callable[[ShapeMeasurement], float]


def predict(roofline: FittedRoofline, rows: Sequence[ShapeMeasurement], tau: TokensPerCycle) -> tuple[Prediction, ...]:
    predictions = []
    for row in rows:
        predictions.append(
            Prediction(row, "first token", row.ttft_ms, roofline.ttft_ms(row.batch, row.prompt, row.gamma))
        )
        predictions.append(Prediction(row, "a token", row.token_ms, roofline.token_ms_at(row, tau(row))))
    return tuple(predictions)


def fit_roofline(start: FittedRoofline, rows: Sequence[ShapeMeasurement], only: Sequence[str] = ()) -> FittedRoofline:
    """Return the performance model ``start`` with constants fitted to the measured times.

    ``only`` has the names of the constants to fit. If it is empty, all constants are fitted.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("there are no closed loops to fit to: run the bench with --batches and --prompts")
    # Times of cycles are fitted instead of times between tokens, because the number of tokens per cycle is random.
    # Overhead and draft cost can be separated only if the rows have two different gammas.
    names = ["flops", "bandwidth", "layer_us", "first_ms", "token_ms"]
    gammas = {round(row.gamma, 1) for row in rows if row.gamma > 0}
    if start.draft is not None and gammas:
        names += ["draft_cost"] + (["overhead"] if len(gammas) > 1 else [])
    names = [name for name in names if not only or name in only]

    def loss(logs: Sequence[float]) -> float:
        roofline = _with(start, names, logs)
        return sum(_row_loss(roofline, row) for row in rows) + _prior_loss(roofline, start)

    best: tuple[float, list[float]] | None = None
    # The loss has local minima with small and with large costs beyond the roofline, so start near both.
    starts = [replace(start, first_ms=small_ms, token_ms=small_ms / 10) for small_ms in (0.01, 1.0)]
    for initial in [start] if only else starts:
        found = nelder_mead(loss, [math.log(max(1e-6, getattr(initial, name))) for name in names])
        found = nelder_mead(loss, found[1])
        best = found if best is None or found[0] < best[0] else best
    if best is None:
        raise AssertionError("there is at least one start")
    return _with(start, names, best[1])


def _row_loss(roofline: FittedRoofline, row: ShapeMeasurement) -> float:
    first = math.log(roofline.ttft_ms(row.batch, row.prompt, row.gamma) / row.ttft_ms)
    return first**2 + math.log(roofline.cycle_ms(row.batch, row.context, row.gamma) / row.cycle_ms) ** 2


def _prior_loss(roofline: FittedRoofline, start: FittedRoofline) -> float:
    # A weak prior decides between fits that are equally good. For example, at batch 1 and a single gamma, a high
    # ``draft_cost`` and a high ``token_ms`` have the same effect.
    beyond = 100 * roofline.token_ms / roofline.step_ms(1, 0)
    # No hardware is faster than its data sheet.
    too_fast = sum(max(0.0, math.log(share)) ** 2 for share in (roofline.flops, roofline.bandwidth))
    return too_fast + ROOFLINE_PRIOR_WEIGHT * (
        math.log1p(beyond) ** 2
        + math.log(roofline.draft_cost / start.draft_cost) ** 2
        + math.log(roofline.layer_us / max(1e-6, start.layer_us)) ** 2
    )


def _with(roofline: FittedRoofline, names: Sequence[str], logs: Sequence[float]) -> FittedRoofline:
    values = {name: math.exp(max(-30.0, min(30.0, value))) for name, value in zip(names, logs, strict=True)}
    return replace(roofline, **values)  # type: ignore[arg-type]


def nelder_mead(loss: Callable[[Sequence[float]], float], start: Sequence[float]) -> tuple[float, list[float]]:
    """Minimise ``loss`` by the downhill simplex of Nelder and Mead (1965). Return the smallest loss and its point."""
    size = len(start)
    points = [list(start)] + [[x + (0.7 if i == j else 0.0) for j, x in enumerate(start)] for i in range(size)]
    simplex = sorted((loss(point), point) for point in points)
    for _ in range(MAX_ROUNDS):
        (best, _), (second, _), (worst, last) = simplex[0], simplex[-2], simplex[-1]
        if worst - best < TOLERANCE:
            break
        centre = [sum(point[j] for _, point in simplex[:-1]) / size for j in range(size)]

        def towards(share: float, centre: list[float] = centre, last: list[float] = last) -> tuple[float, list[float]]:
            point = [c + share * (c - x) for c, x in zip(centre, last, strict=True)]
            return loss(point), point

        tried = towards(1.0)
        if tried[0] < best:
            tried = min(tried, towards(2.0))
        elif tried[0] >= second:
            tried = min(tried, towards(0.5), towards(-0.5))
        if tried[0] < worst:
            simplex[-1] = tried
        else:  # shrink towards the best point
            first = simplex[0][1]
            points = [[(a + b) / 2 for a, b in zip(point, first, strict=True)] for _, point in simplex[1:]]
            simplex[1:] = [(loss(point), point) for point in points]
        simplex.sort()
    return simplex[0]
