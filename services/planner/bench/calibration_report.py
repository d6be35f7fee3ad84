from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.physics.adaptive import GammaBand, format_schedule
from services.physics.statistics import median
from services.planner.bench.calibration import (
    MEDIAN_BAR,
    REGRET_BAR,
    WORST_BAR,
    Calibration,
    median_error,
    worst_error,
)
from services.planner.bench.fit import FittedRoofline, Prediction


def lines(calibration: Calibration) -> Iterator[str]:
    roofline = next(iter(calibration.rooflines.values()))
    yield f"fitted to {len(calibration.predictions) // 2} shapes of {roofline.target.name} on {roofline.gpu.name}"
    for arms, fitted in _distinct(calibration.rooflines):
        yield f" {', '.join(arms)}:"
        yield from _parameters(fitted)
    what = "alpha" if roofline.draft is not None else "kept"  # with n-gram drafting, the accepted share
    for arm, alpha in calibration.alpha.items():
        positions = " ".join(f"{share:.2f}" for share in calibration.positions[arm])
        yield f"  {f'{what}, {arm}':<16} {alpha:.3f}{f'  by position {positions}' if positions else ''}"
    yield ""
    yield (
        f"{'arm':<14} {'batch':>5} {'prompt':>6} {'gamma':>5}   {'ms to':<11} {'measured':>9} {'predicted':>9} "
        f"{'error':>7}"
    )
    yield from map(_row, calibration.predictions)
    yield ""
    yield from _by_arm("fitted to every row", calibration.predictions)
    yield from _by_arm("fitted to batch 1, the other batches held out", calibration.held_out)
    if calibration.regrets:
        values = [each.regret for each in calibration.regrets]
        yield (
            f"choosing the arm by the prediction costs {median(values):.1%} in the median, {max(values):.1%} at worst "
            f"({_bar(max(values) <= REGRET_BAR)} of {REGRET_BAR:.0%})"
        )
    if calibration.bands:
        yield from _advice(calibration.bands)


def as_json(calibration: Calibration) -> dict[str, Any]:
    return {
        "machines": {arm: _named(roofline) for arm, roofline in calibration.rooflines.items()},
        "alpha": dict(calibration.alpha),
        "acceptance_by_position": dict(calibration.positions),
        "rows": [asdict(each) | {"error": each.error} for each in calibration.predictions],
        "held_out": [asdict(each) | {"error": each.error} for each in calibration.held_out],
        "median_error": median_error(calibration.predictions),
        "worst_error": worst_error(calibration.predictions),
        "held_out_median_error": median_error(calibration.held_out),
        "held_out_worst_error": worst_error(calibration.held_out),
        "regrets": [asdict(each) for each in calibration.regrets],
        "bands": [asdict(each) for each in calibration.bands],
    }


def _advice(found: Sequence[GammaBand]) -> Iterator[str]:
    if any(band.gamma for band in found):
        yield f"draft by batch size: {format_schedule(found)} (RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH)"
    else:
        yield "drafting pays at no measured batch size: leave it off"


def _distinct(rooflines: Mapping[str, FittedRoofline]) -> list[tuple[list[str], FittedRoofline]]:
    found: list[tuple[list[str], FittedRoofline]] = []
    for arm, roofline in rooflines.items():
        for arms, known in found:
            if known == roofline:
                arms.append(arm)
                break
        else:
            found.append(([arm], roofline))
    return found


def _named(roofline: FittedRoofline) -> dict[str, Any]:
    draft = None if roofline.draft is None else roofline.draft.name
    return asdict(roofline) | {"target": roofline.target.name, "draft": draft, "gpu": roofline.gpu.name}


def _parameters(roofline: FittedRoofline) -> Iterator[str]:
    flops = roofline.gpu.flops(roofline.precision) * roofline.flops
    bandwidth = roofline.gpu.bandwidth * roofline.bandwidth
    yield f"  {'arithmetic':<16} {roofline.flops:.3f} of the data sheet's rate ({flops / 1e12:.3g} TFLOP/s)"
    yield f"  {'memory':<16} {roofline.bandwidth:.3f} of the data sheet's rate ({bandwidth / 1e9:.4g} GB/s)"
    fixed = (
        f"{roofline.layer_us:.0f} us per layer, {roofline.first_ms:.2f} ms per first token, "
        f"{roofline.token_ms:.3f} ms per further token of a step"
    )
    yield f"  {'fixed costs':<16} {fixed}"
    if roofline.draft is not None:
        yield (
            f"  {'drafting':<16} {roofline.draft_cost:.2f} times what the law gives for {roofline.draft.name}, "
            f"overhead {roofline.overhead:.3f} of a plain step"
        )


def _row(prediction: Prediction) -> str:
    row = prediction.row
    return (
        f"{row.arm:<14} {row.batch:>5} {row.prompt:>6} {row.gamma:>5.1f}   {prediction.what:<11} "
        f"{prediction.measured:>9.2f} {prediction.predicted:>9.2f} {prediction.error:>+7.1%}"
    )


def _by_arm(name: str, predictions: Sequence[Prediction]) -> Iterator[str]:
    if not predictions:
        return
    yield _errors(name, predictions)
    for arm in dict.fromkeys(each.row.arm for each in predictions):
        yield _errors(f"  of these, {arm}", [each for each in predictions if each.row.arm == arm])


def _errors(name: str, predictions: Sequence[Prediction]) -> str:
    middle, worst = median_error(predictions), worst_error(predictions)
    return (
        f"{name}: median error {middle:.1%} ({_bar(middle <= MEDIAN_BAR)} of {MEDIAN_BAR:.0%}), "
        f"worst {worst:.1%} ({_bar(worst <= WORST_BAR)} of {WORST_BAR:.0%})"
    )


def _bar(met: bool) -> str:
    return "within the bar" if met else "OVER the bar"
