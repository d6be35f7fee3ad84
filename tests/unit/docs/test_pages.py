"""Test that the hand-written pages name only settings, metrics and commands that exist."""

import re
import tomllib
from pathlib import Path

import pytest

from infra.docs import commands, metrics, settings
from infra.docs.discover import ROOT
from schemas.topics import TOPICS

pytestmark = pytest.mark.slow  # it imports every service

PAGES = sorted((ROOT / "docs").rglob("*.md"))
SERIES = ("", "_total", "_created", "_bucket", "_count", "_sum")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))


@each_page
def test_every_setting_that_a_page_names_is_one(page: Path) -> None:
    named = set(re.findall(r"\bRAILBUS_[A-Z0-9_]*[A-Z0-9]\b", page.read_text(encoding="utf-8")))

    assert named - settings.names() == set()


@each_page
def test_every_metric_that_a_page_names_is_one(page: Path) -> None:
    named = set(re.findall(r"\brailbus_[a-z_]+[a-z]\b", page.read_text(encoding="utf-8")))
    known = {metric._name + end for metric in metrics.metrics() for end in SERIES}

    assert named - known == set()


@each_page
def test_every_command_that_a_page_names_is_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {name.split()[1] for name in commands.commands() if name.startswith("railbus ")}

    assert set(re.findall(r"(?:`|\$ |bin/|\n)railbus ([a-z]+)", text)) - known == set()


def test_the_page_of_ones_own_kafka_has_every_topic_with_its_partitions() -> None:
    page = (ROOT / "docs" / "how-to" / "own-kafka.md").read_text(encoding="utf-8")

    for topic in TOPICS:
        kept = f"{topic.retention_ms // 3_600_000} h"
        row = rf"^{topic.name} +{topic.partitions(4)} +\d+ +{kept}  {re.escape(topic.about)}$"
        assert re.search(row, page, re.MULTILINE)
        assert (f"`{topic.name}`" in page) == (topic.spread == "single")


def test_the_page_about_installing_has_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras) - {"dev", "docs"}


def test_no_page_names_a_folder_of_somebodys_machine() -> None:
    assert [
        page.name for page in PAGES if re.search(r"(?<![\w.])/(home|work|root|Users)/", page.read_text("utf-8"))
    ] == []
