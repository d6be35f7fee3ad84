"""Drawings of a latency plan: roofline, speed-up, budget. Needs the extra ``plots``."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.physics.roofline import BATCHED, FLOOR, Efficiency, multiply_ms, read_ms, token_flop, weight_bytes_read
from services.planner.latency import ALPHAS, Plan
from services.planner.question import Question
from services.runtime.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS: Final = (".png", ".svg")
GAMMAS: Final = range(13)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
INK: Final = ("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0")

Draw = Callable[["Axes"], None]


def draw_plan(question: Question, plan: Plan, to: Path) -> Iterator[Path]:
    """Draws into one file with every panel, or into a folder, one file a panel. The paths that were written.

    Raises:
        UserError: matplotlib is missing, or the path cannot be written.
    """
    panels: dict[str, Draw] = {"roofline": lambda axes: roofline(axes, question, plan)}
    if question.draft is not None:
        panels["gamma"] = lambda axes: speedup_by_gamma(axes, question)
        panels["batch"] = lambda axes: speedup_by_batch(axes, question)
    panels["budget"] = lambda axes: waterfall(axes, plan)
    yield from draw(panels, to)


def draw(panels: dict[str, Draw], to: Path) -> Iterator[Path]:
    """Every panel into the one file ``to``, or each into a file of its own when ``to`` is a folder (or has no ending).

    Raises:
        UserError: matplotlib is missing, or the path cannot be written.
    """
    if to.suffix in KINDS:
        yield _save(list(panels.values()), to)
        return
    if to.suffix and not to.is_dir():
        raise UserError(f"--plot {to}: a drawing ends in {' or '.join(KINDS)}; a folder gets one file for each")
    for name, panel in panels.items():
        yield _save([panel], to / f"{name}.png")


def _save(panels: Sequence[Draw], path: Path) -> Path:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install 'railbus[plots]', or pip install matplotlib") from None
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(7.2 * columns, 4.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        panel(axes)
        axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written ({error.strerror})") from None
    return path


def roofline(axes: "Axes", question: Question, plan: Plan) -> None:
    """FLOP rate over FLOP per byte: both roofs, and where prefill, plain and verify steps stand."""
    gpu, model, precision = question.gpu, question.target, question.precision
    peak = gpu.flops(precision)
    intensities = [2 ** (power / 4) for power in range(-4, 57)]
    for efficiency, label, style in ((FLOOR, "data sheet", "-"), (BATCHED, "practical", "--")):
        roof = [
            min(peak * efficiency.flops, each * gpu.bandwidth * efficiency.bandwidth) / 1e12 for each in intensities
        ]
        axes.loglog(intensities, roof, style, color="0.35", label=label)
    byte = weight_bytes_read(model, precision)
    points = [("prefill", question.prompt, INK[1]), ("decode", question.batch, INK[0])]
    if plan.gamma:
        points.append((f"verify, gamma {plan.gamma}", question.batch * (plan.gamma + 1), INK[2]))
    for name, tokens, colour in points:
        flop = tokens * token_flop(model, question.context)
        milliseconds = _step_ms(question, tokens, BATCHED)
        axes.plot([flop / byte], [flop / milliseconds / 1e9], "o", color=colour, label=name)
    axes.set_xlabel("FLOP per byte of weights read")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline: {model.name} on {gpu.name}, {precision}")
    axes.legend(frameon=False, fontsize=8)


def _step_ms(question: Question, tokens: int, efficiency: Efficiency) -> float:
    where = (question.target, question.gpu, question.precision)
    reading = read_ms(*where, batch=0, context=0, efficiency=efficiency)
    return max(reading, multiply_ms(*where, tokens=tokens, context=question.context, efficiency=efficiency))


def speedup_by_gamma(axes: "Axes", question: Question) -> None:
    """One curve an alpha, its best gamma marked."""
    for alpha, colour in zip(_alphas(question.alpha), INK, strict=False):
        speeds = [
            question.pair.speedup(alpha, gamma, batch=question.batch, context=question.context) for gamma in GAMMAS
        ]
        best = max(GAMMAS, key=speeds.__getitem__)
        axes.plot(GAMMAS, speeds, "-", color=colour, label=f"alpha {alpha:g}", lw=2.4 if alpha == question.alpha else 1)
        axes.plot([best], [speeds[best]], "o", color=colour)
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set_xlabel("gamma, tokens drafted a step")
    axes.set_ylabel("tokens a second over plain")
    axes.set_title(f"Speed-up by gamma, batch {question.batch}")
    axes.legend(frameon=False, fontsize=8)


def speedup_by_batch(axes: "Axes", question: Question) -> None:
    """The best gamma at each batch, and one that stays what it is at batch 1."""
    for alpha, colour in zip(_alphas(question.alpha), INK, strict=False):
        best = [question.pair.best_gamma(alpha, batch=batch, context=question.context) for batch in BATCHES]
        fixed = best[0][0]
        stays = [question.pair.speedup(alpha, fixed, batch=batch, context=question.context) for batch in BATCHES]
        axes.plot(BATCHES, [speed for _, speed in best], "-", color=colour, label=f"alpha {alpha:g}")
        axes.plot(BATCHES, stays, ":", color=colour)
    axes.plot([], [], ":", color="0.4", label="gamma as at batch 1")
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axes.set_xlabel(f"batch (context {question.context})")
    axes.set_ylabel("tokens a second over plain")
    axes.set_title("Speed-up by batch, gamma chosen for each")
    axes.legend(frameon=False, fontsize=8)


def waterfall(axes: "Axes", plan: Plan) -> None:
    """The budget from receipt to the last token, plain above and with speculation below."""
    parts = [part for part in plan.parts if max(part.practical, part.drafted) > 0]
    parts.sort(key=lambda part: not part.first)
    names = [part.name for part in parts]
    for column, offset, label, shade in (("practical", -0.2, "plain", 1.0), ("drafted", 0.2, "speculative", 0.5)):
        start = 0.0
        for row, part in enumerate(parts):
            width = getattr(part, column)
            colour = INK[2] if part.first else INK[0]
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


def _alphas(asked: float) -> tuple[float, ...]:
    return ALPHAS if asked in ALPHAS else (*ALPHAS, asked)
