"""Test that each section of RESULTS.md names a command, and that the modules and scripts in the command exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECTIONS = re.split(r"^## ", (ROOT / "tests/bench/RESULTS.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
COMMAND = re.compile(r"`[^`]*(?:python -m |make |railbus |pytest |infra/)[^`]*`")


def test_every_section_names_a_command():
    assert [section.splitlines()[0] for section in SECTIONS if not COMMAND.search(section)] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0][:40])
def test_what_the_commands_run_exists(section):
    for module in re.findall(r"python -m ((?:tests|services)[\w.]*)", section):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for file in re.findall(r"\b((?:tests|infra)/[\w/]+\.(?:py|sh))\b", section):
        assert (ROOT / file).is_file(), file
