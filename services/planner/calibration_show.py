"""A calibration as lines for people, and as one object for programs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.physics.adaptive import Band, profile
from services.planner.calibration import (
    MEDIAN_BAR,
    REGRET_BAR,
    WORST_BAR,
    Calibration,
    median_error,
    worst_error,
)
from services.planner.fit import Held, Machine
from services.planner.statistics import median


def lines(calibration: Calibration) -> Iterator[str]:
    """What was fitted, then every row with its error, then the errors together."""
    machine = next(iter(calibration.machines.values()))
    yield f"fitted to {len(calibration.held) // 2} shapes of {machine.target.name} on {machine.gpu.name}"
    for arms, fitted in _distinct(calibration.machines):
        yield f" {', '.join(arms)}:"
        yield from _parameters(fitted)
    what = "alpha" if machine.draft is not None else "kept"  # of looked up tokens, a share
    for arm, alpha in calibration.alpha.items():
        positions = " ".join(f"{share:.2f}" for share in calibration.positions[arm])
        yield f"  {f'{what}, {arm}':<16} {alpha:.3f}{f'  by position {positions}' if positions else ''}"
    yield ""
    yield (
        f"{'arm':<14} {'batch':>5} {'prompt':>6} {'gamma':>5}   {'ms to':<11} {'measured':>9} {'predicted':>9} "
        f"{'error':>7}"
    )
    yield from map(_row, calibration.held)
    yield ""
    yield from _by_arm("fitted to every row", calibration.held)
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
    """The same."""
    return {
        "machines": {arm: _named(machine) for arm, machine in calibration.machines.items()},
        "alpha": dict(calibration.alpha),
        "acceptance_by_position": dict(calibration.positions),
        "rows": [asdict(each) | {"error": each.error} for each in calibration.held],
        "held_out": [asdict(each) | {"error": each.error} for each in calibration.held_out],
        "median_error": median_error(calibration.held),
        "worst_error": worst_error(calibration.held),
        "held_out_median_error": median_error(calibration.held_out),
        "held_out_worst_error": worst_error(calibration.held_out),
        "regrets": [asdict(each) for each in calibration.regrets],
        "bands": [asdict(each) for each in calibration.bands],
    }


def _advice(found: Sequence[Band]) -> Iterator[str]:
    if any(band.gamma for band in found):
        yield f"drafting pays so, by batch: {profile(found)} (RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH)"
    else:
        yield "drafting pays at no batch that was measured: leave it off"


def _distinct(machines: Mapping[str, Machine]) -> list[tuple[list[str], Machine]]:
    """Each machine once, with the arms it stands for."""
    found: list[tuple[list[str], Machine]] = []
    for arm, machine in machines.items():
        for arms, known in found:
            if known == machine:
                arms.append(arm)
                break
        else:
            found.append(([arm], machine))
    return found


def _named(machine: Machine) -> dict[str, Any]:
    draft = None if machine.draft is None else machine.draft.name
    return asdict(machine) | {"target": machine.target.name, "draft": draft, "gpu": machine.gpu.name}


def _parameters(machine: Machine) -> Iterator[str]:
    flops = machine.gpu.flops(machine.precision) * machine.flops
    bandwidth = machine.gpu.bandwidth * machine.bandwidth
    yield f"  {'arithmetic':<16} {machine.flops:.3f} of the paper rate ({flops / 1e12:.3g} TFLOP/s)"
    yield f"  {'memory':<16} {machine.bandwidth:.3f} of the paper rate ({bandwidth / 1e9:.4g} GB/s)"
    beyond = f"{machine.first_ms:.2f} ms a first token, {machine.token_ms:.3f} ms each further token of a step"
    yield f"  {'beyond them':<16} {beyond}"
    if machine.draft is not None:
        yield (
            f"  {'drafting':<16} {machine.draft_cost:.2f} times what the bytes of {machine.draft.name} take, "
            f"overhead {machine.overhead:.3f} of a plain step"
        )


def _row(held: Held) -> str:
    row = held.row
    return (
        f"{row.arm:<14} {row.batch:>5} {row.prompt:>6} {row.gamma:>5.1f}   {held.what:<11} {held.measured:>9.2f} "
        f"{held.predicted:>9.2f} {held.error:>+7.1%}"
    )


def _by_arm(name: str, held: Sequence[Held]) -> Iterator[str]:
    if not held:
        return
    yield _errors(name, held)
    for arm in dict.fromkeys(each.row.arm for each in held):
        yield _errors(f"  of these, {arm}", [each for each in held if each.row.arm == arm])


def _errors(name: str, held: Sequence[Held]) -> str:
    middle, worst = median_error(held), worst_error(held)
    return (
        f"{name}: median error {middle:.1%} ({_bar(middle <= MEDIAN_BAR)} of {MEDIAN_BAR:.0%}), "
        f"worst {worst:.1%} ({_bar(worst <= WORST_BAR)} of {WORST_BAR:.0%})"
    )


def _bar(met: bool) -> str:
    return "within the bar" if met else "OVER the bar"
