"""Policies in folders of a test's own."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]


def copied(tmp_path, name="default"):
    """A copy of a shipped policy that a test may spoil."""
    target = tmp_path / name
    shutil.copytree(ROOT / "policies" / name, target)
    return target


def spoil(folder, path, old, new):
    """Replace a text that must be there; returns its line."""
    file = folder / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1
