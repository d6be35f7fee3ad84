"""One class name stands for one thing, and names of tests are short. Read from the sources; nothing is imported."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "Settings": "each service has a settings module with one class of this name, which its own modules import",
}
"""Names that several modules may define, and why. Private classes need no reason: only their module reads them."""


@cache
def _classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted((*ROOT.glob("services/**/*.py"), *ROOT.glob("schemas/**/*.py"))):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_class_name_is_defined_once():
    twice = {name: paths for name, paths in _classes().items() if len(paths) > 1 and name not in SHARED}
    assert twice == {}, "rename all but one, with the field's own word for what it is"


def test_each_reason_is_still_needed():
    classes = _classes()
    assert [name for name in SHARED if len(classes[name]) < 2] == []


def test_each_services_settings_are_in_its_own_settings_module():
    assert [path for path in _classes()["Settings"] if not path.endswith("/settings.py")] == []


def test_names_of_tests_have_at_most_70_characters():
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > 70
    ]
    assert long == [], "say what holds, and leave the conditions to the test"
