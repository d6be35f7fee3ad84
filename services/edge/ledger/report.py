"""Make the report that the page at ``/ledger`` shows."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from services.books import Attainment, Cell, Totals, json_of
from services.edge.ledger.window_store import US_PER_S, WindowKey, class_of

MOST_POINTS: Final = 60
"""Maximum number of points in a chart over time. A point covers at least the width of a window."""

MOST_ROWS: Final = 50
MOST_CHOICES: Final = 100
"""Maximum number of tenants that the page's filter offers. Those with the most requests are chosen."""

STEP: Final = 20
"""Number of windows that are added up in one step of ``report_steps``."""

Steps = Generator[None, None, dict[str, Any]]
Windows = Iterable[tuple[WindowKey, Totals]]


class Query(NamedTuple):
    """The filter of a report.

    Attributes:
        minutes: The report covers this many minutes up to now.
        tenant: Include only this tenant; None includes every tenant that the user may see.
        service_class: Include only this class; None includes every class.
    """

    minutes: int = 60
    tenant: str | None = None
    service_class: str | None = None

    def wants(self, cell: Cell) -> bool:
        return self.tenant in {None, cell.tenant} and self.service_class in {None, class_of(cell)}


def report_steps(windows: Windows, query: Query, now_us: int, wanted_shares: Mapping[str, float]) -> Steps:
    """Make a report on the last ``query.minutes`` minutes before ``now_us``.

    This Python generator yields after each small piece of work, so that other tasks can run. It returns the report.
    """
    since_at = now_us - query.minutes * 60 * US_PER_S
    seen = [(key, totals) for key, totals in windows if key.end_at > since_at]
    wanted = [(key, totals) for key, totals in seen if query.wants(key.cell)]
    # The first window is counted as a whole, so it may begin before ``since_at``.
    seconds = (now_us - min([since_at, *(key.start_at for key, _ in wanted)])) / US_PER_S
    width_us = _width_us(wanted, query)
    total, routes, rows, points = Totals(), dict[Any, Totals](), dict[Any, Totals](), dict[Any, Totals]()
    for number, (key, totals) in enumerate(wanted):
        total.merge(totals)
        for sums, name in (
            (routes, key.cell.route), (rows, key.cell), (points, key.start_at // width_us * width_us),
        ):  # fmt: skip
            sums.setdefault(name, Totals()).merge(totals)
        if number % STEP == STEP - 1:
            yield
    most = sorted(rows.items(), key=lambda row: (-row[1].of("requests"), str(row[0])))
    found: dict[str, Any] = {"points": [], "rows": [], "routes": []}
    for at in sorted(points):
        found["points"].append({"start_at": at} | _json(points[at], width_us / US_PER_S))
        yield
    for cell, totals in most[:MOST_ROWS]:
        found["rows"].append(cell._asdict() | _json(totals, seconds))
        yield
    for route in sorted(routes):
        found["routes"].append({"route": route} | _json(routes[route], seconds))
        yield
    return found | {
        "minutes": query.minutes,
        "since_at": since_at,
        "until_at": now_us,
        "point_s": width_us / US_PER_S,
        "classes": [each.json() for each in _attainments(rows, wanted_shares)],
        "total": _json(total, seconds),
        "rows_left_out": max(0, len(most) - MOST_ROWS),
        "choices": {"tenants": _tenants(seen), "classes": sorted({class_of(key.cell) for key, _ in seen})},
    }


def _attainments(rows: Mapping[Cell, Totals], wanted_shares: Mapping[str, float]) -> list[Attainment]:
    judged, good = Counter[str](), Counter[str]()
    for cell, totals in rows.items():
        judged[class_of(cell)] += totals.of("judged")
        good[class_of(cell)] += totals.of("good")
    names = sorted(judged.keys() & wanted_shares.keys())
    return [Attainment(name, wanted_shares[name], judged[name], good[name]) for name in names]


def _width_us(windows: Windows, query: Query) -> int:
    window_us = max((key.end_at - key.start_at for key, _ in windows), default=US_PER_S)
    least_us = query.minutes * 60 * US_PER_S // MOST_POINTS
    return max(window_us, -(-least_us // max(1, window_us)) * window_us)


def _tenants(windows: Windows) -> list[str]:
    requests: Counter[str] = Counter()
    for key, totals in windows:
        requests[key.cell.tenant] += totals.of("requests")
    return sorted(name for name, _ in requests.most_common(MOST_CHOICES))


def _json(totals: Totals, seconds: float) -> dict[str, Any]:
    found = json_of(totals, seconds)
    del found["buckets"]  # the page does not draw the histograms
    return found
