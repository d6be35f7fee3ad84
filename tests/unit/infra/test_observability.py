"""Test that rules and dashboards name only metrics that exist, and that the runbook explains every alert."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.docs.metrics import metrics
from infra.observability import dashboards
from tests.support.prometheus_server import program

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "infra" / "observability"
RULE_FILES = sorted((FOLDER / "rules").glob("*.yml"))
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in dashboards.read_yaml(path)["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"
UIDS = sorted(dashboards.sources())

OF_THE_CLIENT = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}
"""Series that the Prometheus client adds to every process."""

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])


def series() -> set[str]:
    """Return the names of all series that Railbus's metrics can have in a scrape."""
    found: set[str] = set()
    for metric in metrics():
        name, kind = metric._name, metric._type
        found |= {
            "counter": {f"{name}_total"},
            "gauge": {name},
            "histogram": {f"{name}_bucket", f"{name}_sum", f"{name}_count"},
        }[kind]
    return found


def named(expression: str) -> set[str]:
    """Return the names of the metrics and recording rules in a PromQL expression."""
    return set(re.findall(r"\b(?:railbus[a-z0-9_:]*|process_[a-z_]+)\b(?!\")", re.sub(r'"[^"]*"', '""', expression)))


def sections() -> dict[str, str]:
    """Return the sections of the runbook by the anchors of their headings."""
    parts = re.split(r"(?m)^## ", RUNBOOK.read_text(encoding="utf-8"))[1:]
    return {re.sub(r"[^a-z0-9]+", "-", part.partition("\n")[0].lower()).strip("-"): part for part in parts}


def test_there_are_rules_and_dashboards() -> None:
    assert len(ALERTS) >= 20
    assert RECORDED
    assert len(UIDS) == 5


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_of_a_rule_exists(rule: dict[str, Any]) -> None:
    assert named(rule["expr"]) - series() - RECORDED - OF_THE_CLIENT == set()


def test_no_label_of_a_metric_is_one_that_prometheus_gives_to_each_process() -> None:
    """Metrics do not use the labels that Prometheus adds to all series of a process, such as ``instance``.

    If a metric had such a label, Prometheus would rename this label to ``exported_...``.
    """
    of_a_process = {"job", "instance", "service", "process"}

    assert {metric._name: of_a_process & set(metric._labelnames) for metric in metrics()} == {
        metric._name: set() for metric in metrics()
    }


@pytest.mark.parametrize("uid", UIDS)
def test_every_metric_of_a_dashboard_exists(uid: str) -> None:
    panels = json.loads((dashboards.FOLDER / f"{uid}.json").read_text(encoding="utf-8"))["panels"]
    names = {name for panel in panels for target in panel["targets"] for name in named(target["expr"])}

    assert len(names) > 5
    assert names - series() - RECORDED - OF_THE_CLIENT == set()


@pytest.mark.parametrize("uid", UIDS)
def test_the_json_is_what_the_panels_give(uid: str) -> None:
    written = (dashboards.FOLDER / f"{uid}.json").read_text(encoding="utf-8")

    assert written == dashboards.text(uid), "run python -m infra.observability.dashboards"


def test_no_dashboard_is_left_over() -> None:
    assert sorted(path.stem for path in dashboards.FOLDER.glob("*.json")) == UIDS


@each_alert
def test_every_alert_has_its_section_in_the_runbook(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook"].partition("#")

    assert ROOT / page == RUNBOOK
    section = sections()[anchor]
    assert f"`{alert['alert']}` ({alert['labels']['severity']}" in section
    assert " ".join(alert["expr"].split()) in " ".join(section.split())


def test_the_runbook_names_no_alert_that_is_gone() -> None:
    named_there = set(re.findall(r"`(Railbus[A-Z]\w+)`", RUNBOOK.read_text(encoding="utf-8")))

    assert named_there == {rule["alert"] for rule in ALERTS}


@each_alert
def test_every_alert_has_a_test_in_which_it_fires(alert: dict[str, Any]) -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (FOLDER / "tests").glob("*.yml"))

    assert f'count(ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}})\'' in tests


def test_the_rules_are_valid() -> None:
    checked = _promtool("check", "rules", *map(str, RULE_FILES))

    assert f"{len(ALERTS)} rules found" in checked


@pytest.mark.slow
def test_every_alert_fires_on_what_it_is_for_and_on_nothing_else() -> None:
    _promtool("test", "rules", *map(str, sorted((FOLDER / "tests").glob("*.yml"))))


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-tree.yml"])
def test_the_configuration_is_valid(name: str) -> None:
    _promtool("check", "config", "--syntax-only", str(FOLDER / name))


def _promtool(*arguments: str) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
