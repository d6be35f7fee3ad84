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
