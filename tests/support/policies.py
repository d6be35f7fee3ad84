"""Copy policies into a test's own folder, and edit the copies."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_policy(tmp_path, name="default"):
    """Copy one of Railbus's policies to ``tmp_path``, where a test may change it. Return the folder of the copy."""
    target = tmp_path / name
    shutil.copytree(ROOT / "policies" / name, target)
    return target


def replace_in_file(folder, path, old, new):
    """In a file of ``folder``, replace the first ``old`` by ``new``. Return the line number at which ``old`` began.

    If the file does not contain ``old``, the test fails.
    """
    file = folder / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1
