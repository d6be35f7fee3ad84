"""Test that names and packages follow the rules, for example that no two classes have the same name.

The tests read the source files and import none of them.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "Settings": "each service has a settings module with one class of this name, which its own modules import",
}
"""Class names that several modules may define, and the reason. Private classes need no reason, because only their own
module uses them."""

RETIRED_CLASSES = {
    "Admittance", "Alarms", "Answer", "Arrival", "Asked", "Book", "Broke", "Case", "Contact", "Decided", "Desk",
    "Floor", "Grave", "Hush", "Intake", "Judge", "Keeper", "Later", "Launch", "Ledger", "Letter", "Line", "Look",
    "Lookout", "Machine", "Means", "Memory", "Narrator", "Near", "OpEvents", "OpFrames", "Outlet", "Pages", "Paper",
    "Part", "QuietExecutor", "Reception", "Replay", "Role", "Room", "Said", "Scans", "Script", "Seen", "Shell",
    "Spot", "Stamp", "Tally", "Visitor", "Voiced", "Watch",
}  # fmt: skip
"""Class names that were unclear or had several meanings. They were replaced, and must not be used again.

Some names were replaced in one place, but are right in another, so they are not in the set: ``Account`` and ``Window``
are kinds of events, so they are on the wire and in archives; ``Policy`` is what its owner writes; ``Plan`` is used by
the simulator only; ``Budget`` (of a cascade) and ``Writer`` (of the broker's protocol) are the usual words."""

RETIRED_MODULES = {
    "alarms", "benching", "fair", "fleet", "homes", "letter", "line", "lookout", "means", "moments", "mortal",
    "narrator", "role", "room", "screening", "together", "visits", "vllm_account", "vllm_files", "vllm_hush",
    "vllm_mend", "vllm_owner",
}  # fmt: skip

RETIRED_FUNCTIONS = {
    "buried", "graves", "id_at_home", "judgement", "outlived", "put_away", "remark", "silent", "slides", "together",
}  # fmt: skip

MOST_FILES = 15
"""Maximum number of files in a package, without the files in its subfolders."""


CLASS = re.compile(r"^( *)class (\w+)[:(]", re.MULTILINE)
FUNCTION = re.compile(r"^ *(?:async )?def (\w+)[(\[]", re.MULTILINE)
"""The tests use patterns, because it takes seconds to parse more than a thousand files."""


@cache
def _sources() -> dict[str, str]:
    paths = sorted((*ROOT.glob("services/**/*.py"), *ROOT.glob("schemas/**/*.py")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def _classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path, text in _sources().items():
        for indent, name in CLASS.findall(text):
            if not indent and not name.startswith("_"):
                found[name].append(path)
    return found


def test_the_patterns_find_what_a_parser_finds():
    path = ROOT / "services" / "bus" / "groups" / "group_reader.py"
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    text = _sources()[str(path.relative_to(ROOT))]
    assert {name for _, name in CLASS.findall(text)} == {n.name for n in nodes if isinstance(n, ast.ClassDef)}
    functions = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert set(FUNCTION.findall(text)) == functions


def test_a_class_name_is_defined_once():
    twice = {name: paths for name, paths in _classes().items() if len(paths) > 1 and name not in SHARED}
    assert twice == {}, "rename all but one, with the field's own word for what it is"


def test_no_retired_name_is_back():
    modules = {part for path in _sources() for part in path.removesuffix(".py").split("/")}
    classes = {name for text in _sources().values() for _, name in CLASS.findall(text)}
    functions = {name for text in _sources().values() for name in FUNCTION.findall(text)}
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
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        for name in FUNCTION.findall(path.read_text(encoding="utf-8"))
        if name.startswith("test_") and len(name) > 70
    ]
    assert long == [], "say what holds, and leave the conditions to the test"
