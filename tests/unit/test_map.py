"""Test that each file and folder named in ARCHITECTURE.md, README.md or docs/contributing.md exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("services/", "schemas/", "policies/", "infra/", "tests/", "docs/")


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "README.md", "docs/contributing.md"])
def test_every_path_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {path for path in re.findall(r"`([\w./-]+)`", text) if path.startswith(TOP) and "build/" not in path}
    linked = {path for path in re.findall(r"\]\(([\w./-]+)\)", text) if not path.startswith("http")}
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [path for path in linked if not (ROOT / document).parent.joinpath(path).exists()]
    assert missing == []


def test_the_map_tells_where_the_commonest_changes_are_made():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = text.partition("## To change X, open Y")[2].partition("\n## ")[0].count("\n|")
    assert rows - 2 >= 20
