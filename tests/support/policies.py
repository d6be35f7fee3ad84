"""Policies in folders of a test's own."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_policy(tmp_path, name="default"):
    """A copy of a shipped policy that a test may spoil."""
    target = tmp_path / name
    shutil.copytree(ROOT / "policies" / name, target)
    return target


def replace_in_file(folder, path, old, new):
    """Replace a text that must be there; returns its line."""
    file = folder / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1
