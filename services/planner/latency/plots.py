from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.physics.efficiency import BATCHED, FLOOR
from services.physics.roofline import step_ms, token_flop, weight_bytes_read
from services.planner.latency.plan import ALPHAS, LatencyPlan
from services.planner.latency.plan_input import PlanInput
from services.planner.plotting import COLOURS, DrawPanel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAMMAS: Final = range(13)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def draw_plan(inputs: PlanInput, plan: LatencyPlan, to: Path) -> Iterator[Path]:
    panels: dict[str, DrawPanel] = {"roofline": lambda axes: roofline(axes, inputs, plan)}
    if inputs.draft is not None:
        panels["gamma"] = lambda axes: speedup_by_gamma(axes, inputs)
        panels["batch"] = lambda axes: speedup_by_batch(axes, inputs)
    panels["budget"] = lambda axes: waterfall(axes, plan)
    yield from draw_panels(panels, to)


def roofline(axes: "Axes", inputs: PlanInput, plan: LatencyPlan) -> None:
    gpu, model, precision = inputs.gpu, inputs.target, inputs.precision
    peak = gpu.flops(precision)
    intensities = [2 ** (power / 4) for power in range(-4, 57)]
    for efficiency, label, style in ((FLOOR, "data sheet", "-"), (BATCHED, "practical", "--")):
        roof = [
            min(peak * efficiency.flops, each * gpu.bandwidth * efficiency.bandwidth) / 1e12 for each in intensities
        ]
        axes.loglog(intensities, roof, style, color="0.35", label=label)
    byte = weight_bytes_read(model, precision)
    points = [("prefill", inputs.prompt, COLOURS[1]), ("decode", inputs.batch, COLOURS[0])]
    if plan.gamma:
        points.append((f"verify, gamma {plan.gamma}", inputs.batch * (plan.gamma + 1), COLOURS[2]))
    for name, tokens, colour in points:
        flop = tokens * token_flop(model, inputs.context)
        milliseconds = _step_ms(inputs, tokens)
        axes.plot([flop / byte], [flop / milliseconds / 1e9], "o", color=colour, label=name)
    axes.set_xlabel("FLOP per byte of weights read")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline: {model.name} on {gpu.name}, {precision}")
    axes.legend(frameon=False, fontsize=8)


def _step_ms(inputs: PlanInput, tokens: int) -> float:
    flop = tokens * token_flop(inputs.target, inputs.context)
    return step_ms(
        inputs.target, inputs.gpu, inputs.precision,
        prefill_flop=flop, prefill_tokens=tokens, efficiency=inputs.pair.achieved,
    )  # fmt: skip


def speedup_by_gamma(axes: "Axes", inputs: PlanInput) -> None:
    for alpha, colour in zip(_alphas(inputs.alpha), COLOURS, strict=False):
        speeds = [inputs.pair.speedup(alpha, gamma, batch=inputs.batch, context=inputs.context) for gamma in GAMMAS]
        best = max(GAMMAS, key=speeds.__getitem__)
        axes.plot(GAMMAS, speeds, "-", color=colour, label=f"alpha {alpha:g}", lw=2.4 if alpha == inputs.alpha else 1)
        axes.plot([best], [speeds[best]], "o", color=colour)
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set_xlabel("gamma, tokens drafted per step")
    axes.set_ylabel("tokens per second over plain")
    axes.set_title(f"Speed-up by gamma, batch {inputs.batch}")
    axes.legend(frameon=False, fontsize=8)


def speedup_by_batch(axes: "Axes", inputs: PlanInput) -> None:
    for alpha, colour in zip(_alphas(inputs.alpha), COLOURS, strict=False):
        best = [inputs.pair.best_gamma(alpha, batch=batch, context=inputs.context) for batch in BATCHES]
        fixed = best[0][0]
        fixed_speeds = [inputs.pair.speedup(alpha, fixed, batch=batch, context=inputs.context) for batch in BATCHES]
        axes.plot(BATCHES, [speed for _, speed in best], "-", color=colour, label=f"alpha {alpha:g}")
        axes.plot(BATCHES, fixed_speeds, ":", color=colour)
    axes.plot([], [], ":", color="0.4", label="gamma as at batch 1")
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axes.set_xlabel(f"batch (context {inputs.context})")
    axes.set_ylabel("tokens per second over plain")
    axes.set_title("Speed-up by batch, gamma chosen for each")
    axes.legend(frameon=False, fontsize=8)


def waterfall(axes: "Axes", plan: LatencyPlan) -> None:
    parts = [part for part in plan.parts if max(part.practical, part.drafted) > 0]
    parts.sort(key=lambda part: not part.first)
    names = [part.name for part in parts]
    for column, offset, label, shade in (("practical", -0.2, "plain", 1.0), ("drafted", 0.2, "speculative", 0.5)):
        start = 0.0
        for row, part in enumerate(parts):
            width = getattr(part, column)
            colour = COLOURS[2] if part.first else COLOURS[0]
            axes.barh(row + offset, width, left=start, height=0.36, color=colour, alpha=shade)
            start += width
        axes.text(start, len(parts) - 1 + offset, f" {start:.0f} ms {label}", va="center", fontsize=8)
    first = plan.total("practical", first=True)
    axes.axvline(first, color="0.4", lw=0.8, ls="--")
    axes.text(first, -0.75, f"first token, {first:.0f} ms", fontsize=8, ha="left")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel("ms since the request was sent")
    axes.set_title("Budget", pad=14)


def _alphas(alpha: float) -> tuple[float, ...]:
    return ALPHAS if alpha in ALPHAS else (*ALPHAS, alpha)
