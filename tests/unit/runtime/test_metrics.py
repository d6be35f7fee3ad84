import re
from pathlib import Path

import services
from services.runtime.metrics import render_metrics


def test_every_metric_says_its_service_and_what_it_counts() -> None:
    body, _ = render_metrics()
    helps = dict(re.findall(r"^# HELP (railbus_\S+) (.*)$", body.decode(), re.MULTILINE))
    names = set(re.findall(r"^# TYPE (railbus_\S+)", body.decode(), re.MULTILINE))
    assert len(names) > 20
    assert all(helps.get(name) for name in names)
    folders = {folder.name for folder in Path(services.__path__[0]).iterdir()}
    assert {name.split("_")[1] for name in names} <= folders


def test_what_is_counted_by_a_known_label_begins_at_zero() -> None:
    body = render_metrics()[0].decode()
    for series in (
        'railbus_router_closed_total{lane="interactive",outcome="failed"}',
        'railbus_router_closed_causes_total{cause="no_verdict"}',
        'railbus_bus_refused_total{topic="railbus.streams"}', 'railbus_rails_verdicts_total{decision="deny"}',
    ):  # fmt: skip
        assert f"\n{series} " in body
