from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.planner.batch.choose import pareto_front
from services.planner.batch.ways import Kind, Way
from services.planner.plotting import DrawPanel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Final[dict[Kind, tuple[str, str]]] = {
    "measured": ("*", "#000000"),
    "local": ("o", "#1f4e79"), "less work": ("v", "#5b9bd5"), "smaller model": ("s", "#548235"),
    "several GPUs": ("D", "#7030a0"), "rented": ("^", "#c55a11"), "API": ("P", "#c00000"), "cascade": ("X", "#7f6000"),
}  # fmt: skip

LEAST_MONEY: Final = 0.01
"""Ways that cost less than a cent are drawn at a cent, because the axis is logarithmic."""


def draw_batch(ways: Sequence[Way], title: str, to: Path) -> Iterator[Path]:
    panels: dict[str, DrawPanel] = {"front": lambda axes: front(axes, ways, title)}
    yield from draw_panels(panels, to)


def front(axes: "Axes", ways: Sequence[Way], title: str) -> None:
    best = pareto_front(ways)
    for kind, (marker, colour) in STYLES.items():
        of = [way for way in ways if way.kind == kind]
        if not of:
            continue
        axes.errorbar(
            [way.hours.value for way in of], [_drawn(way.money.value) for way in of],
            xerr=[
                [way.hours.value - way.hours.low for way in of], [way.hours.high - way.hours.value for way in of],
            ],
            yerr=[
                [_drawn(way.money.value) - _drawn(way.money.low) for way in of],
                [_drawn(way.money.high) - _drawn(way.money.value) for way in of],
            ],
            fmt=marker, color=colour, ms=5, lw=0.6, alpha=0.75, label=kind,
        )  # fmt: skip
    axes.plot(
        [way.hours.value for way in best], [_drawn(way.money.value) for way in best], "-", color="0.3", lw=1.2,
        label="Pareto front", zorder=1,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, way in enumerate(best):
        axes.annotate(
            f"{number + 1}", (way.hours.value, _drawn(way.money.value)), textcoords="offset points", xytext=(5, 5),
            fontsize=8, fontweight="bold",
        )  # fmt: skip
    names = "\n".join(f"{number + 1}  {way.name}" for number, way in enumerate(best))
    axes.text(1.02, 0.0, names, transform=axes.transAxes, fontsize=7, va="bottom", ha="left")
    axes.set_xlabel("hours")
    axes.set_ylabel("dollars")
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, which="major", lw=0.3, color="0.85")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _drawn(money: float) -> float:
    return max(LEAST_MONEY, money)
