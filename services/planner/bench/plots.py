from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from services.planner.bench.calibration import Calibration
from services.planner.bench.results import BenchResult
from services.planner.plotting import COLOURS, DrawPanel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bench(result: BenchResult, calibration: Calibration | None, to: Path) -> Iterator[Path]:
    panels: dict[str, DrawPanel] = {}
    if any(run.measured.streams for run in result.runs):
        panels["first-token"] = lambda axes: distribution(axes, result, "first token")
        panels["a-token"] = lambda axes: distribution(axes, result, "a token")
    if calibration is not None:
        panels["predicted"] = lambda axes: predicted(axes, calibration)
    if calibration is not None and any(calibration.positions.values()):
        panels["acceptance"] = lambda axes: acceptance(axes, calibration)
    yield from draw_panels(panels, to)


def distribution(axes: "Axes", result: BenchResult, what: str) -> None:
    for colour, arm in zip(COLOURS, result.arms, strict=False):
        for style, cache in (("-", "cold"), ("--", "warm")):
            requests = [
                each
                for measured in result.of(arm)
                for stream in measured.streams
                if stream.cache == cache
                for each in stream.requests
                if each.answered
            ]
            times = sorted(
                time
                for each in requests
                if (time := each.ttft_ms if what == "first token" else each.token_ms) is not None
            )
            if times:
                shares = [(index + 1) / len(times) for index in range(len(times))]
                axes.step(times, shares, style, where="post", color=colour, label=f"{arm}, {cache}")
    axes.set_xscale("log")
    axes.set_xlabel(f"ms to {what}")
    axes.set_ylabel("share of requests")
    axes.set_title(f"Open loop: {what}")
    axes.legend(frameon=False, fontsize=8)


def predicted(axes: "Axes", calibration: Calibration) -> None:
    values = [value for each in calibration.predictions for value in (each.measured, each.predicted)]
    span = [min(values) * 0.8, max(values) * 1.25]
    for factor, style in ((1.0, "-"), (1.2, "--"), (1 / 1.2, "--")):
        axes.loglog(span, [value * factor for value in span], style, color="0.6", lw=0.8)
    for marker, what in (("o", "first token"), ("s", "a token")):
        for colour, arm in zip(COLOURS, dict.fromkeys(each.row.arm for each in calibration.predictions), strict=False):
            rows = [each for each in calibration.predictions if each.what == what and each.row.arm == arm]
            axes.loglog(
                [each.measured for each in rows],
                [each.predicted for each in rows],
                marker,
                color=colour,
                alpha=0.7,
                label=f"{arm}, {what}",
            )
    axes.set_xlabel("measured ms")
    axes.set_ylabel("predicted ms")
    axes.set_title("Predicted against measured")
    axes.legend(frameon=False, fontsize=8)


def acceptance(axes: "Axes", calibration: Calibration) -> None:
    for colour, (arm, shares) in zip(COLOURS[1:], calibration.positions.items(), strict=False):
        positions = range(1, len(shares) + 1)
        alpha = calibration.alpha[arm]
        axes.plot(positions, shares, "o", color=colour, label=f"{arm}, measured")
        axes.plot(
            positions, [alpha**position for position in positions], "-", color=colour, lw=1, label=f"alpha {alpha:.2f}"
        )
    axes.set_ylim(0, 1)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share accepted")
    axes.set_title("Acceptance by position")
    axes.legend(frameon=False, fontsize=8)
