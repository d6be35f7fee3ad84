"""Draw charts into image files. Needs matplotlib, from the extra ``plots``."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.runtime.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE_TYPES: Final = (".png", ".svg")
NO_MATPLOTLIB: Final = "--plot needs matplotlib: pip install 'railbus[plots]', or pip install matplotlib"
COLOURS: Final = ("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0")

DrawPanel = Callable[["Axes"], None]


def check_plot(to: Path) -> None:
    """Check that charts can be drawn into the file or folder ``to``. Call this before a measurement that takes long.

    Raises:
        UserError: matplotlib is missing, or the type of the file is wrong.
    """
    if to.suffix and to.suffix not in FILE_TYPES and not to.is_dir():
        raise UserError(
            f"--plot {to}: the file must end in {' or '.join(FILE_TYPES)}; a folder gets one file per panel"
        )
    if find_spec("matplotlib") is None:
        raise UserError(NO_MATPLOTLIB)


def draw_panels(panels: dict[str, DrawPanel], to: Path) -> Iterator[Path]:
    """Draw all charts into the file ``to``, or into one file per chart if ``to`` is a folder. Yield the paths.

    Raises:
        UserError: matplotlib is missing, the type of the file is wrong, or the path cannot be written.
    """
    check_plot(to)
    if to.suffix in FILE_TYPES:
        yield _save(list(panels.values()), to)
        return
    for name, panel in panels.items():
        yield _save([panel], to / f"{name}.png")


def _save(panels: Sequence[DrawPanel], path: Path) -> Path:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(NO_MATPLOTLIB) from None
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(7.2 * columns, 4.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for position, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        panel(axes)
        axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written ({error.strerror})") from None
    return path
