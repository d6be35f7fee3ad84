"""Fit the performance model to a bench result, and compute the errors of its predictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.physics.adaptive import MARGIN, GammaBand
from services.physics.catalogue.precisions import PRECISIONS
from services.physics.checks import MOST
from services.physics.efficiency import practical
from services.physics.statistics import median
from services.planner.bench.bands import bands
from services.planner.bench.closed_loops import ShapeMeasurement, accepted_share, alpha, by_position, rows
from services.planner.bench.fit import FittedRoofline, Prediction, TokensPerCycle, fit_roofline, predict
from services.planner.bench.results import PLAIN, BenchResult
from services.planner.catalogue import find_gpu, find_model
from services.runtime.errors import UserError

MEDIAN_BAR: Final = 0.10
WORST_BAR: Final = 0.20
REGRET_BAR: Final = 0.03

NO_DRAFT: Final = ("ngram", "none")
"""Names in the catalogue of a result that stand for no draft model. N-gram drafting (``ngram``) copies tokens from the
text, which costs almost nothing."""


@dataclass(frozen=True, slots=True)
class Regret:
    """The slowdown if an arm is chosen by prediction instead of by measurement.

    ``regret`` is the chosen arm's time between tokens divided by that of the best arm, minus 1.
    """

    batch: int
    prompt: int
    chosen: str
    best: str
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted performance models, and the errors of their predictions.

    Attributes:
        rooflines: Performance model of each arm, fitted to all measurements.
        alpha: Probability that a drafted token is accepted, by arm.
        positions: Share of drafts whose token at a given position was accepted, by arm and position.
        predictions: Predictions by ``rooflines`` for all measurements.
        held_out: Predictions by models that were fitted to batch size 1 only.
        bands: Number of tokens to draft, by batch size.
    """

    rooflines: Mapping[str, FittedRoofline]
    alpha: Mapping[str, float]
    positions: Mapping[str, tuple[float, ...]]
    predictions: tuple[Prediction, ...]
    held_out: tuple[Prediction, ...]
    regrets: tuple[Regret, ...]
    bands: tuple[GammaBand, ...]


def calibrate(result: BenchResult, *, processor: bool = False) -> Calibration:
    """Fit the performance model to a bench result.

    With ``processor``, the CPU times of the engine are used instead of wall-clock times.

    Raises:
        UserError: The result has no closed loops, or names an unknown model or accelerator.
    """
    start = unfitted_roofline(result.catalogue)
    found = rows(result, processor=processor)
    of = alpha if start.draft is not None else accepted_share
    acceptance = {name: share for name in result.arms if (share := of(result.of(name))) is not None}
    if not found:
        raise UserError("there are no closed loops to fit to: run the bench with --batches and --prompts")
    rooflines = _fitted(start, found)
    predictions = _predictions(rooflines, found, _tau(start, acceptance, found))
    return Calibration(
        rooflines=rooflines,
        alpha=acceptance,
        positions={name: by_position(result.of(name)) for name in acceptance},
        predictions=predictions,
        held_out=_held_out(start, acceptance, found),
        regrets=regrets(predictions),
        bands=bands(found, {name: arm.gamma for name, arm in result.arms.items()}),
    )


def unfitted_roofline(catalogue: Mapping[str, str]) -> FittedRoofline:
    """Return the roofline formulas with default constants.

    They are for the LLM and the accelerator that are named in the mapping ``catalogue``.

    Raises:
        UserError: ``catalogue`` lacks an entry, or has an unknown name or a wrong number.
    """
    try:
        draft, precision, budget = catalogue["draft"], catalogue["precision"], catalogue["budget"]
        gpu, target = find_gpu(catalogue["gpu"]), find_model(catalogue["target"])
    except KeyError as error:
        raise UserError(f"the result's catalogue lacks a name that the prediction needs: {error}") from None
    if precision not in PRECISIONS:
        raise UserError(f"the engine's precision {precision!r} is not known; known are {', '.join(PRECISIONS)}")
    constants = practical(gpu)
    return FittedRoofline(
        target=target,
        draft=None if draft in NO_DRAFT else find_model(draft),
        precision=precision,  # type: ignore[arg-type]
        gpu=gpu,
        budget=_budget(budget),
        flops=constants.flops,
        bandwidth=constants.bandwidth,
        layer_us=constants.layer_us,
    )


def _budget(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MOST:
        raise UserError(f"the engine's budget {text[:64]!r} must be a whole number within 1 and {MOST:,}")
    return value


def regrets(predictions: Sequence[Prediction]) -> tuple[Regret, ...]:
    shapes: dict[tuple[int, int], list[Prediction]] = {}
    for each in predictions:
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


def median_error(predictions: Sequence[Prediction]) -> float:
    return median([abs(each.error) for each in predictions]) if predictions else 0.0


def worst_error(predictions: Sequence[Prediction]) -> float:
    return max((abs(each.error) for each in predictions), default=0.0)


def _fitted(start: FittedRoofline, known: Sequence[ShapeMeasurement]) -> dict[str, FittedRoofline]:
    names = list(dict.fromkeys(row.arm for row in known))
    if start.draft is not None:
        roofline = fit_roofline(start, known)
        return dict.fromkeys(names, roofline)
    by_arm = {name: [row for row in known if row.arm == name] for name in names}
    if PLAIN not in by_arm:
        return {name: fit_roofline(start, of) for name, of in by_arm.items()}
    plain = fit_roofline(start, by_arm[PLAIN])
    return {name: plain if name == PLAIN else _arm_fit(start, plain, of) for name, of in by_arm.items()}


def _arm_fit(start: FittedRoofline, plain: FittedRoofline, known: Sequence[ShapeMeasurement]) -> FittedRoofline:
    if len({row.batch for row in known}) > 1:
        return fit_roofline(start, known)
    # At a single batch size, the effects of reading, multiplying and fixed costs cannot be separated. So only the
    # arithmetic rate is fitted, and the other constants are those of the plain arm.
    return fit_roofline(plain, known, only=("flops",))


def _predictions(
    rooflines: Mapping[str, FittedRoofline], found: Sequence[ShapeMeasurement], tau: TokensPerCycle
) -> tuple[Prediction, ...]:
    return tuple(each for row in found if row.arm in rooflines for each in predict(rooflines[row.arm], [row], tau))


def _held_out(
    start: FittedRoofline, acceptance: Mapping[str, float], found: Sequence[ShapeMeasurement]
) -> tuple[Prediction, ...]:
    known = [row for row in found if row.batch == 1]
    others = [row for row in found if row.batch > 1]
    if not known or not others:
        return ()
    return _predictions(_fitted(start, known), others, _tau(start, acceptance, known))


def _tau(
    roofline: FittedRoofline, acceptance: Mapping[str, float], known: Sequence[ShapeMeasurement]
) -> TokensPerCycle:
    def tau(row: ShapeMeasurement) -> float:
        a = acceptance.get(row.arm)
        if a is None or row.gamma <= 0:
            return 1.0
        if roofline.draft is None:
            # N-gram drafting finds tokens only in some steps, and ``row.gamma`` is the mean over all steps.
            return 1 + _kept_at(row, known, a) * row.gamma
        return row.gamma + 1 if a >= 1 else (1 - math.pow(a, row.gamma + 1)) / (1 - a)

    return tau


def _kept_at(row: ShapeMeasurement, known: Sequence[ShapeMeasurement], otherwise: float) -> float:
    # The accepted share depends more on the text than on the hardware. Prompts of the same length have the same text.
    alike = [each for each in known if each.arm == row.arm and _length(each) == _length(row)]
    drafted = sum(each.gamma * each.batch * each.sets for each in alike)
    return sum((each.tau - 1) * each.batch * each.sets for each in alike) / drafted if drafted else otherwise


def _length(row: ShapeMeasurement) -> int:
    # Prompts that differ by a few tokens count as equally long.
    return round(row.prompt / 32)
