"""A machine fitted to a bench, twice: to everything, and to batch 1 alone with the rest held out. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.physics.adaptive import MARGIN, Band
from services.planner.bands import bands
from services.planner.fit import Held, Machine, Tau, fit, hold
from services.planner.grid import Row, alpha, by_position, kept, rows
from services.planner.names import find_gpu, find_model
from services.planner.results import PLAIN, Result
from services.planner.statistics import median
from services.runtime.errors import UserError

MEDIAN_BAR: Final = 0.10
WORST_BAR: Final = 0.20
REGRET_BAR: Final = 0.03

NO_DRAFT: Final = "ngram"
"""A draft that costs next to nothing: tokens looked up in the text."""


@dataclass(frozen=True, slots=True)
class Regret:
    """What choosing an arm by the prediction costs at one shape: time between tokens over the best arm's, less one."""

    batch: int
    prompt: int
    chosen: str
    best: str
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted, and how far off it is.

    Attributes:
        machines: Fitted to every row; one for all arms where a model drafts. Where tokens are looked up each arm has
            its own: an engine may use other kernels then (llama.cpp keeps its weights in another layout).
        alpha: Of each arm that drafts; where tokens are looked up, the share of them that was accepted.
        positions: Its acceptance by position; empty where the engine does not say.
        held: Every row, by these machines.
        held_out: The rows beyond batch 1, by machines fitted to batch 1 alone.
        regrets: Choosing the arm by the prediction.
        bands: How much to draft at which batch, by what was measured; empty with one arm.
    """

    machines: Mapping[str, Machine]
    alpha: Mapping[str, float]
    positions: Mapping[str, tuple[float, ...]]
    held: tuple[Held, ...]
    held_out: tuple[Held, ...]
    regrets: tuple[Regret, ...]
    bands: tuple[Band, ...]


def calibrate(result: Result, *, processor: bool = False) -> Calibration:
    """The calibration; to processor time instead of the clock's when asked.

    Raises:
        UserError: The bench has no closed loops, or names models or an accelerator that are not known.
    """
    start = machine_of(result.catalogue)
    found = rows(result, processor=processor)
    of = alpha if start.draft is not None else kept
    acceptance = {name: share for name in result.arms if (share := of(result.of(name))) is not None}
    if not found:
        raise UserError("there are no closed loops to fit to: run the bench with --batches and --prompts")
    machines = _fitted(start, found)
    held = _hold(machines, found, _tau(start, acceptance, found))
    return Calibration(
        machines=machines,
        alpha=acceptance,
        positions={name: by_position(result.of(name)) for name in acceptance},
        held=held,
        held_out=_held_out(start, acceptance, found),
        regrets=regrets(held),
        bands=bands(found, {name: arm.gamma for name, arm in result.arms.items()}),
    )


def machine_of(catalogue: Mapping[str, str]) -> Machine:
    """What the bench says it ran on, before anything is fitted.

    Raises:
        UserError: A name is not known.
    """
    try:
        draft, precision, budget = catalogue["draft"], catalogue["precision"], int(catalogue["budget"])
        gpu, target = find_gpu(catalogue["gpu"]), find_model(catalogue["target"])
    except (KeyError, ValueError) as error:
        raise UserError(f"the result's catalogue lacks what a prediction needs: {error}") from None
    if precision not in {"bf16", "fp8", "int4"}:
        raise UserError(f"the result's catalogue names the precision {precision!r}; known are bf16, fp8, int4")
    return Machine(
        target=target,
        draft=None if draft == NO_DRAFT else find_model(draft),
        precision=precision,  # type: ignore[arg-type]
        gpu=gpu,
        budget=budget,
        overlaps=gpu.name != "cpu",
    )


def regrets(held: Sequence[Held]) -> tuple[Regret, ...]:
    """One for each shape that ran in several arms, plain among them; drafting must promise ``MARGIN`` to be chosen."""
    shapes: dict[tuple[int, int], list[Held]] = {}
    for each in held:
        if each.what == "a token":
            shapes.setdefault((each.row.batch, _length(each.row)), []).append(each)
    found = []
    for (batch, _), arms in sorted(shapes.items()):
        if len(arms) < 2 or all(each.row.arm != PLAIN for each in arms):
            continue
        plain = next(each for each in arms if each.row.arm == PLAIN)
        chosen = min(arms, key=lambda each: each.predicted)
        if chosen.predicted > plain.predicted * (1 - MARGIN):
            chosen = plain
        best = min(arms, key=lambda each: each.measured)
        regret = chosen.measured / best.measured - 1
        found.append(Regret(batch, best.row.prompt, chosen.row.arm, best.row.arm, regret))
    return tuple(found)


def median_error(held: Sequence[Held]) -> float:
    """Of the absolute errors; 0 of none."""
    return median([abs(each.error) for each in held]) if held else 0.0


def worst_error(held: Sequence[Held]) -> float:
    """Of the absolute errors; 0 of none."""
    return max((abs(each.error) for each in held), default=0.0)


def _fitted(start: Machine, known: Sequence[Row]) -> dict[str, Machine]:
    """By arm."""
    names = list(dict.fromkeys(row.arm for row in known))
    if start.draft is not None:
        machine = fit(start, known)
        return dict.fromkeys(names, machine)
    by_arm = {name: [row for row in known if row.arm == name] for name in names}
    if PLAIN not in by_arm:
        return {name: fit(start, of) for name, of in by_arm.items()}
    plain = fit(start, by_arm[PLAIN])
    return {name: plain if name == PLAIN else _own(start, plain, of) for name, of in by_arm.items()}


def _own(start: Machine, plain: Machine, known: Sequence[Row]) -> Machine:
    """An arm's machine: all its own when its rows can tell, else the plain arm's with another arithmetic rate.

    One batch cannot: there reading, multiplying and what is beyond them look alike.
    """
    if len({row.batch for row in known}) > 1:
        return fit(start, known)
    return fit(plain, known, only=("flops",))


def _hold(machines: Mapping[str, Machine], found: Sequence[Row], tau: Tau) -> tuple[Held, ...]:
    return tuple(each for row in found if row.arm in machines for each in hold(machines[row.arm], [row], tau))


def _held_out(start: Machine, acceptance: Mapping[str, float], found: Sequence[Row]) -> tuple[Held, ...]:
    known = [row for row in found if row.batch == 1]
    others = [row for row in found if row.batch > 1]
    if not known or not others:
        return ()
    return _hold(_fitted(start, known), others, _tau(start, acceptance, known))


def _tau(machine: Machine, acceptance: Mapping[str, float], known: Sequence[Row]) -> Tau:
    """Tokens a cycle.

    Where a model drafts gamma tokens each time, by alpha. Where tokens are looked up they are found now and then and
    ``row.gamma`` is an average over all steps: then each drafted token gives its acceptance, which is the text's more
    than the machine's. So it is taken from the known rows whose prompts are as long: theirs are the same.
    """

    def tau(row: Row) -> float:
        a = acceptance.get(row.arm)
        if a is None or row.gamma <= 0:
            return 1.0
        if machine.draft is None:
            return 1 + _kept_at(row, known, a) * row.gamma
        return row.gamma + 1 if a >= 1 else (1 - math.pow(a, row.gamma + 1)) / (1 - a)

    return tau


def _kept_at(row: Row, known: Sequence[Row], otherwise: float) -> float:
    """The share of looked up tokens that was accepted, over the known rows of this arm and length of prompt."""
    alike = [each for each in known if each.arm == row.arm and _length(each) == _length(row)]
    drafted = sum(each.gamma * each.batch * each.sets for each in alike)
    return sum((each.tau - 1) * each.batch * each.sets for each in alike) / drafted if drafted else otherwise


def _length(row: Row) -> int:
    """Prompts of one length hold not quite equally many tokens."""
    return round(row.prompt / 32)
