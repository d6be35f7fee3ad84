"""Write the Grafana dashboards from ``grafana/panels.yml``: ``python -m infra.observability.dashboards``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

GRAFANA: Final = Path(__file__).parent / "grafana"
FOLDER: Final = GRAFANA / "dashboards"

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
HEIGHT: Final = 8
QUANTILES: Final = (50, 95, 99)


def sources() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_yaml(GRAFANA / "panels.yml")
    return found


def read_yaml(path: Path) -> Any:
    # The parser in C is ten times as fast.
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def text(uid: str) -> str:
    source = sources()[uid]
    panels: list[dict[str, Any]] = []
    for number, row in enumerate(source["rows"]):
        width = COLUMNS // len(row)
        for column, panel in enumerate(row):
            place = {"h": HEIGHT, "w": width, "x": column * width, "y": number * HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
    link = {"type": "dashboards", "tags": ["railbus"], "title": "Railbus", "asDropdown": True, "keepTime": True}
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    whole = {
        "uid": uid,
        "title": source["title"],
        "tags": ["railbus"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [link],
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(whole, indent=2) + "\n"


def queries(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the legend and the PromQL text of each query of a panel."""
    histogram = panel.get("quantiles")
    for quantile in QUANTILES if histogram else ():
        buckets = f"sum by (le) (rate({histogram}_bucket[$__rate_interval]))"
        yield f"p{quantile}", f"histogram_quantile({quantile / 100}, {buckets})"
    yield from panel.get("queries", {}).items()


def _panel(panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    newest: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "id": number,
        "title": panel["title"],
        "type": "stat" if panel.get("stat") else "timeseries",
        "gridPos": place,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "options": newest if panel.get("stat") else {"legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
            for index, (legend, query) in enumerate(queries(panel))
        ],
    }


def main() -> None:
    for uid in sources():
        (FOLDER / f"{uid}.json").write_text(text(uid), encoding="utf-8")


if __name__ == "__main__":
    main()
