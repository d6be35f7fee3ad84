"""Fits what the catalogue cannot know of a machine to what was measured on it. Pure; times in milliseconds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.physics.gpus import Gpu
from services.physics.models import Model
from services.physics.roofline import PRACTICAL, Precision, kv_bytes, prefill_flop, token_flop, weight_bytes_read
from services.physics.speculation import OVERHEAD
from services.planner.grid import Row
from services.planner.statistics import median

ROUNDS: Final = 600
"""Of the search; it ends sooner when it stands still."""
STILL: Final = 1e-9
MOST_STEPS: Final = 256
"""Of a prefill that is followed step by step; a longer one is taken in larger steps."""
PULL: Final = 1e-3
"""Of what lies beyond the roofline, back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A roofline with the rates that were reached, and what lies beyond it.

    Attributes:
        target: Model that answers.
        draft: Model that drafts; None where drafting costs next to nothing (n-gram).
        precision: Of the linear layers.
        gpu: Whose paper rates the efficiencies are shares of.
        budget: Prompt tokens in one step of the engine, at most.
        flops: Share of the arithmetic rate.
        bandwidth: Share of the memory rate.
        first_ms: Before a first token, beyond reading the prompt.
        token_ms: Each further token of a step, beyond the roofline.
        draft_cost: Time of a draft step over what its bytes alone take at that memory rate.
        overhead: Of a cycle, over a plain step.
        overlaps: Reading and multiplying go on at once, as on a GPU; a thread of a CPU does one after the other.
    """

    target: Model
    draft: Model | None
    precision: Precision
    gpu: Gpu
    budget: int
    flops: float = PRACTICAL.flops
    bandwidth: float = PRACTICAL.bandwidth
    first_ms: float = 0.0
    token_ms: float = 0.0
    draft_cost: float = 1.0
    overhead: float = OVERHEAD
    overlaps: bool = True

    def ttft_ms(self, batch: int, prompt: int, gamma: float = 0.0) -> float:
        """Median of ``batch`` prompts that come together and are read in turn, ``budget`` tokens a step.

        Those whose prompt was read decode, and draft, in the steps that read the others'.
        """
        if prompt < 1:
            return self.first_ms
        left, budget = batch * prompt, max(1, self.budget, batch * prompt // MOST_STEPS)
        flop, spent, read = prefill_flop(self.target, prompt) / prompt, 0.0, 0
        ends: list[float] = []
        while left > 0:
            tokens = min(left, budget)
            spent += self._prefill_step_ms(tokens * flop, prompt, decoding=read // prompt, gamma=gamma)
            read, left = read + tokens, left - tokens
            ends += [spent] * (read // prompt - len(ends))
        return self.first_ms + median(ends)

    def step_ms(self, batch: int, context: int, positions: float = 1.0) -> float:
        """One pass of the target."""
        tokens = batch * positions
        read = weight_bytes_read(self.target, self.precision) + batch * kv_bytes(self.target, context)
        multiplied = tokens * token_flop(self.target, context)
        return self._both(self._read_ms(read), self._multiply_ms(multiplied)) + self.token_ms * (tokens - 1)

    def cycle_ms(self, batch: int, context: int, gamma: float) -> float:
        """Draft steps, one verifying pass, the overhead; a plain step when nothing is drafted."""
        plain = self.step_ms(batch, context)
        if gamma <= 0:
            return plain
        drafting = gamma * self.draft_ms(batch, context) + self.overhead * plain if self.draft is not None else 0.0
        return self.step_ms(batch, context, gamma + 1) + drafting

    def draft_ms(self, batch: int, context: int) -> float:
        """One step of the draft."""
        if self.draft is None:
            return 0.0
        read = weight_bytes_read(self.draft, self.precision) + batch * kv_bytes(self.draft, context)
        return self.draft_cost * self._both(
            self._read_ms(read), self._multiply_ms(batch * token_flop(self.draft, context))
        )

    def token_ms_at(self, row: Row, tau: float) -> float:
        """Between tokens of one sequence, when a cycle gives ``tau``."""
        return self.cycle_ms(row.batch, row.context, row.gamma) / tau

    def _prefill_step_ms(self, flop: float, prompt: int, *, decoding: int, gamma: float) -> float:
        reading = self._read_ms(weight_bytes_read(self.target, self.precision))
        flop += decoding * (gamma + 1) * token_flop(self.target, prompt)
        drafting = 0.0
        if decoding and gamma > 0 and self.draft is not None:
            drafting = gamma * self.draft_ms(decoding, prompt) + self.overhead * self.step_ms(decoding, prompt)
        return self._both(reading, self._multiply_ms(flop)) + drafting

    def _both(self, reading: float, multiplying: float) -> float:
        return max(reading, multiplying) if self.overlaps else reading + multiplying

    def _read_ms(self, size: float) -> float:
        return size / (self.gpu.bandwidth * self.bandwidth) * 1e3

    def _multiply_ms(self, flop: float) -> float:
        return flop / (self.gpu.flops(self.precision) * self.flops) * 1e3


@dataclass(frozen=True, slots=True)
class Held:
    """A prediction beside what was measured."""

    row: Row
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


Tau = Callable[[Row], float]


def hold(machine: Machine, rows: Sequence[Row], tau: Tau) -> tuple[Held, ...]:
    """Every prediction beside its measurement."""
    held = []
    for row in rows:
        held.append(Held(row, "first token", row.ttft_ms, machine.ttft_ms(row.batch, row.prompt, row.gamma)))
        held.append(Held(row, "a token", row.token_ms, machine.token_ms_at(row, tau(row))))
    return tuple(held)


def fit(start: Machine, rows: Sequence[Row], only: Sequence[str] = ()) -> Machine:
    """The machine whose first tokens and cycles are nearest to the rows': least squares of the logarithms.

    Cycles, not tokens: how many tokens a cycle gave was luck.

    A parameter that the rows say nothing about stays as it was: the overhead is told from the draft's cost only by
    two different gammas.

    Args:
        start: What is known before.
        rows: What was measured.
        only: Parameters to fit; all when empty.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("there are no closed loops to fit to: run the bench with --batches and --prompts")
    names = ["flops", "bandwidth", "first_ms", "token_ms"]
    gammas = {round(row.gamma, 1) for row in rows if row.gamma > 0}
    if start.draft is not None and gammas:
        names += ["draft_cost"] + (["overhead"] if len(gammas) > 1 else [])
    names = [name for name in names if not only or name in only]

    def loss(logs: Sequence[float]) -> float:
        machine = _with(start, names, logs)
        return sum(_missed(machine, row) for row in rows) + _strangeness(machine, start)

    best: tuple[float, list[float]] | None = None
    # Valleys differ in what is beyond the roofline: start in both, unless that is known.
    valleys = [replace(start, first_ms=small_ms, token_ms=small_ms / 10) for small_ms in (0.01, 1.0)]
    for begun in [start] if only else valleys:
        found = descend(loss, [math.log(max(1e-6, getattr(begun, name))) for name in names])
        found = descend(loss, found[1])
        best = found if best is None or found[0] < best[0] else best
    if best is None:
        raise AssertionError("a start was made")
    return _with(start, names, best[1])


def _missed(machine: Machine, row: Row) -> float:
    first = math.log(machine.ttft_ms(row.batch, row.prompt, row.gamma) / row.ttft_ms)
    return first**2 + math.log(machine.cycle_ms(row.batch, row.context, row.gamma) / row.cycle_ms) ** 2


def _strangeness(machine: Machine, start: Machine) -> float:
    """A weak pull to the plain roofline, which decides where the rows do not.

    At batch 1 and one gamma a dear draft and dear further tokens look the same. What one percent of a step costs here
    is paid back when it makes one row 2 % better.
    """
    beyond = 100 * machine.token_ms / machine.step_ms(1, 0)
    paper = sum(max(0.0, math.log(share)) ** 2 for share in (machine.flops, machine.bandwidth))  # nothing is faster
    return paper + PULL * (math.log1p(beyond) ** 2 + math.log(machine.draft_cost / start.draft_cost) ** 2)


def _with(machine: Machine, names: Sequence[str], logs: Sequence[float]) -> Machine:
    values = {name: math.exp(max(-30.0, min(30.0, value))) for name, value in zip(names, logs, strict=True)}
    return replace(machine, **values)  # type: ignore[arg-type]


def descend(loss: Callable[[Sequence[float]], float], start: Sequence[float]) -> tuple[float, list[float]]:
    """The downhill simplex of Nelder and Mead (1965): no derivatives, and the roofline has a kink."""
    size = len(start)
    points = [list(start)] + [[x + (0.7 if i == j else 0.0) for j, x in enumerate(start)] for i in range(size)]
    simplex = sorted((loss(point), point) for point in points)
    for _ in range(ROUNDS):
        (best, _), (second, _), (worst, last) = simplex[0], simplex[-2], simplex[-1]
        if worst - best < STILL:
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
        else:  # shrink towards the best
            first = simplex[0][1]
            points = [[(a + b) / 2 for a, b in zip(point, first, strict=True)] for _, point in simplex[1:]]
            simplex[1:] = [(loss(point), point) for point in points]
        simplex.sort()
    return simplex[0]
