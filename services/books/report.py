"""Create the reports of ``GET /ledger`` and ``railbus ledger`` from the ledger's windows."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from schemas.side_events import Window
from services.books.attainment import attainments, interval
from services.books.config import US_PER_S
from services.books.totals import HISTOGRAMS, Cell, Totals, cell_of, totals_of

_QUANTILES: Final = (0.5, 0.95, 0.99)


WindowKey = tuple[Cell, int, int]
"""What identifies a window part: its ``Cell``, its start and its ``part``."""


class Row(NamedTuple):
    cell: Cell
    totals: Totals


def newest(windows: Iterable[Window]) -> list[Window]:
    """Return the last window of each combination of ``Cell``, ``start_at`` and ``part``."""
    return list({key_of(window): window for window in windows}.values())


def key_of(window: Window) -> WindowKey:
    return cell_of(window), window.start_at, window.part


def merge(windows: Iterable[Window], *, since_at: int = 0) -> list[Row]:
    """Add up the windows with the same tenant, lane, route, model, policy version and service class.

    The row with the most requests comes first. Only windows that end later than ``since_at`` (microseconds since the
    epoch) are counted.
    """
    found: dict[Cell, Totals] = {}
    for window in windows:
        if window.end_at > since_at and window.requests:
            cell, totals = totals_of(window)
            found.setdefault(cell, Totals()).merge(totals)
    rows = [Row(cell, totals) for cell, totals in found.items()]
    return sorted(rows, key=lambda row: (-row.totals.of("requests"), str(row.cell)))


def totals_of_windows(windows: Iterable[Window]) -> dict[tuple[int, Cell], Totals]:
    """Add up the windows with the same start, tenant, lane, route, model, policy version and service class.

    Windows without requests are left out.
    """
    found: dict[tuple[int, Cell], Totals] = {}
    for window in windows:
        if window.requests:
            cell, totals = totals_of(window)
            found.setdefault((window.start_at, cell), Totals()).merge(totals)
    return found


def everything(rows: Iterable[Row]) -> Totals:
    total = Totals()
    for row in rows:
        total.merge(row.totals)
    return total


def json_of(totals: Totals, seconds: float) -> dict[str, Any]:
    """Return a JSON object with the sums, quantiles, shares and rates.

    ``seconds`` is the length of the time that ``totals`` covers. If it is 0, ``goodput_per_s`` is None.
    """
    of = totals.of
    requests, judged, good = of("requests"), of("judged"), of("good")
    stages = totals.window(Cell("x", "interactive", "none", None, None), 0, 1, part=0, final=False)
    return {
        "requests": requests,
        **{name: _quantiles(totals, index) for index, name in enumerate(HISTOGRAMS)},
        "slo": {"judged": judged, "good": good, "share": good / judged if judged else None,
                "interval_95": interval(good, judged)},
        "goodput_per_s": good / seconds if seconds else None,
        "earned_ms": of("earned") / 1_000,
        "spent_ms": of("spent") / 1_000,
        "spent_first_ms": of("spent_first_ms") / 1_000,
        "balance_ms": (of("earned") - of("spent")) / 1_000,
        "fallback_share": of("fell_back") / requests if requests else None,
        "recalled_share": of("recalled") / requests if requests else None,
        "sums": {name: getattr(stages.sums, name) for name in stages.sums.__struct_fields__},
        "stages_ms": {
            **{name.removesuffix("_ms"): getattr(stages.stages, name) for name in stages.stages.__struct_fields__},
            "delivery": stages.delivery_ms,
        },
        "buckets": {name: totals.histograms[index].buckets() for index, name in enumerate(HISTOGRAMS)},
    }  # fmt: skip


def json_rows(windows: Iterable[Window], *, since_at: int, until_at: int) -> dict[str, Any]:
    """Return a JSON object with the sums of the windows that end later than ``since_at``."""
    windows = list(windows)
    # The first window is counted as a whole, so it may begin before ``since_at``.
    begin_at = min((each.start_at for each in windows if each.end_at > since_at and each.requests), default=since_at)
    seconds = max(0.0, (until_at - min(since_at, begin_at)) / US_PER_S)
    rows = merge(windows, since_at=since_at)
    return {
        "since_at": since_at,
        "until_at": until_at,
        "total": json_of(everything(rows), seconds),
        "classes": [each.json() for each in attainments(windows, since_at=since_at)],
        "rows": [row.cell._asdict() | json_of(row.totals, seconds) for row in rows],
    }


def table(rows: list[Row]) -> list[str]:
    if not rows:
        return ["no request was closed in this time"]
    lines = [
        (
            f"{'tenant':16} {'class':11} {'route':11} {'model':20} {'requests':>8}  {'first p50/p95/p99 ms':>22}"
            f"  {'total p50/p95/p99 ms':>22}  {'in time':>16}  {'earned ms':>10} {'spent ms':>10} {'of first':>10}"
            f" {'usd':>9}"
        )
    ]
    shown: list[tuple[Mapping[str, str | None], Totals]] = [
        (row.cell._asdict() | {"class": row.cell.service_class or row.cell.lane}, row.totals) for row in rows
    ]
    if len(rows) > 1:
        shown.append(({"tenant": "all"}, everything(rows)))
    for cell, totals in shown:
        of = totals.of
        names = " ".join(
            f"{(cell.get(name) or '-')[:width]:{width}}"
            for name, width in (("tenant", 16), ("class", 11), ("route", 11), ("model", 20))
        )
        bounds = interval(of("good"), of("judged"))
        in_time = "-" if bounds is None else f"{of('good') / of('judged'):.1%} ({bounds[0]:.0%}-{bounds[1]:.0%})"
        lines.append(
            f"{names} {of('requests'):8}  {_three(totals, 0):>22}  {_three(totals, 2):>22}  {in_time:>16}"
            f"  {of('earned') / 1_000:10.0f} {of('spent') / 1_000:10.0f} {of('spent_first_ms') / 1_000:10.0f}"
            f" {of('usd') / 1e9:9.4f}"
        )
    lines += ["", "spent: how much later last texts were visible because of rails and safety; of first: first texts"]
    total = everything(rows)
    requests = total.of("requests")
    lines += ["", "where the time of a request went, on average, in ms:"]
    for name, ms in json_of(total, 0)["stages_ms"].items():
        lines.append(f"  {name.replace('_', ' '):18} {ms / requests:10.2f}")
    return lines


def _quantiles(totals: Totals, index: int) -> dict[str, float | None]:
    return {f"p{share * 100:g}": totals.histograms[index].quantile(share) for share in _QUANTILES}


def _three(totals: Totals, index: int) -> str:
    found = [totals.histograms[index].quantile(share) for share in _QUANTILES]
    return "-" if found[0] is None else " / ".join(f"{value:.0f}" for value in found if value is not None)
