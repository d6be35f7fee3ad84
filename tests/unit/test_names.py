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

RETIRED_CLASSES = {
    "Admittance", "Alarms", "Answer", "Arrival", "Asked", "Book", "Broke", "Case", "Contact", "Decided", "Desk",
    "Floor", "Grave", "Hush", "Intake", "Judge", "Keeper", "Later", "Launch", "Ledger", "Letter", "Line", "Look",
    "Lookout", "Machine", "Means", "Memory", "Narrator", "Near", "OpEvents", "OpFrames", "Outlet", "Pages", "Paper",
    "Part", "QuietExecutor", "Reception", "Replay", "Role", "Room", "Said", "Scans", "Script", "Seen", "Shell",
    "Spot", "Stamp", "Tally", "Visitor", "Voiced", "Watch",
}  # fmt: skip
"""Class names that told a reader nothing, or stood for several things. They were replaced, and stay so.

Names that were replaced in one place and are right in another: ``Account`` and ``Window`` are kinds of events, so they
are on the wire and in archives; ``Policy`` is what its owner writes; ``Plan`` is the simulator's alone; ``Budget`` (of
a cascade) and ``Writer`` (of the broker's protocol) are the usual words for what they are.
"""

RETIRED_MODULES = {
    "alarms", "benching", "fair", "fleet", "homes", "letter", "line", "lookout", "means", "moments", "mortal",
    "narrator", "role", "room", "screening", "together", "visits", "vllm_account", "vllm_files", "vllm_hush",
    "vllm_mend", "vllm_owner",
}  # fmt: skip

RETIRED_FUNCTIONS = {
    "buried", "graves", "id_at_home", "judgement", "outlived", "put_away", "remark", "silent", "slides", "together",
}  # fmt: skip

MOST_FILES = 15
"""Most files of a package, its folders not counted."""


@cache
def _definitions() -> list[tuple[str, str, str, bool]]:
    """Return the path, kind of node, name and place (at the module's top or not) of every class and function."""
    return [
        (str(path.relative_to(ROOT)), type(node).__name__, node.name, node in tree.body)
        for path in sorted((*ROOT.glob("services/**/*.py"), *ROOT.glob("schemas/**/*.py")))
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@cache
def _classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path, kind, name, is_at_top in _definitions():
        if kind == "ClassDef" and is_at_top and not name.startswith("_"):
            found[name].append(path)
    return found


def test_a_class_name_is_defined_once():
    twice = {name: paths for name, paths in _classes().items() if len(paths) > 1 and name not in SHARED}
    assert twice == {}, "rename all but one, with the field's own word for what it is"


def test_no_retired_name_is_back():
    modules = {part for path, *_ in _definitions() for part in path.removesuffix(".py").split("/")}
    classes = {name for _, kind, name, _ in _definitions() if kind == "ClassDef"}
    functions = {name for _, kind, name, _ in _definitions() if kind != "ClassDef"}
    back = (modules & RETIRED_MODULES) | (classes & RETIRED_CLASSES) | (functions & RETIRED_FUNCTIONS)
    assert back == set(), "the field's own word says more"


def test_no_package_has_too_many_files():
    folders = {path.parent for path in (*ROOT.glob("services/**/*.py"), *ROOT.glob("schemas/**/*.py"))}
    large = {
        str(folder.relative_to(ROOT)): count
        for folder in folders
        if (count := len(list(folder.glob("*.py")))) > MOST_FILES
    }
    assert large == {}, "merge what is one idea, or give a part a folder of its own"


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
