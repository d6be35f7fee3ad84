"""Imports point one way: schemas <- libraries <- services. Read off the sources, nothing is imported."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIBRARIES = {
    "services.runtime": {"schemas"},
    "services.stream": {"schemas"},
    "services.physics": {"schemas"},
    "services.policy": {"schemas", "services.runtime"},
    "services.bus": {"schemas", "services.runtime"},
    "services.worker": {"schemas", "services.runtime", "services.bus"},
    "services.processor": {"schemas", "services.runtime", "services.bus"},
}
"""What each library may import of this product. Services may import schemas and every library, and never each other."""

KAFKA_CLIENT = {"services.bus"}
KAFKA_CODEC = {"services.broker": ("aiokafka.protocol", "aiokafka.record", "aiokafka.errors", "aiokafka.codec")}
"""The broker speaks the protocol's other side: it may use the library's message and batch formats, not its client."""

PURE = ("services.stream", "services.physics")
"""Packages that decide and do no I/O. Any other module joins them by saying so in its docstring."""

DECLARATION = re.compile(r"\bPure\b|\b[Nn]o I/O\b")

IMPURE_IMPORTS = {
    "asyncio",
    "socket",
    "subprocess",
    "threading",
    "time",
    "secrets",
    "aiohttp",
    "uvloop",
    "redis",
}


def sources():
    files = [*ROOT.glob("schemas/**/*.py"), *ROOT.glob("services/**/*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def package(module):
    """The unit that the rules speak of: ``schemas``, or ``services.NAME``."""
    parts = module.split(".")
    return parts[0] if parts[0] == "schemas" else ".".join(parts[:2])


def imports(path):
    """Every module a file imports, wherever in it, as written; relative imports are not used here."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: name the package"
            found |= {node.module or ""} if node.module != "services" else {f"services.{a.name}" for a in node.names}
    return found


SOURCES = sources()
OURS = {
    module: {package(name) for name in imports(path) if name.split(".")[0] in {"schemas", "services"}}
    for module, path in SOURCES.items()
}


def is_within(module, prefixes):
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def test_the_sources_are_found():
    assert "schemas.wire" in SOURCES
    assert len(SOURCES) > 30


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_one_way(module):
    own = package(module)
    used = OURS[module] - {own}
    if own == "schemas":
        assert not used, f"{module} imports {used}: schemas stands below everything"
    elif own in LIBRARIES:
        assert used <= LIBRARIES[own], f"{module} imports {used - LIBRARIES[own]}, which stand above or beside it"
    else:
        allowed = {"schemas", *LIBRARIES}
        assert used <= allowed, f"{module} imports {used - allowed}: services meet on the log, not in code"


@pytest.mark.parametrize("module", SOURCES)
def test_only_the_bus_is_a_kafka_client(module):
    own = package(module)
    if own in KAFKA_CLIENT:
        return
    clients = {name for name in imports(SOURCES[module]) if is_within(name, ("aiokafka", "kafka", "confluent_kafka"))}
    allowed = KAFKA_CODEC.get(own, ())
    assert all(is_within(name, allowed) for name in clients), f"{module} imports {clients}: use services.bus"


def is_pure(module):
    docstring = ast.get_docstring(ast.parse(SOURCES[module].read_text(encoding="utf-8"))) or ""
    return package(module) in PURE or DECLARATION.search(docstring) is not None


@pytest.mark.parametrize("module", [module for module in SOURCES if is_pure(module)])
def test_decisions_do_no_io(module):
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    assert not {name.split(".")[0] for name in imports(SOURCES[module])} & IMPURE_IMPORTS
    awaits = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not awaits, f"{module} awaits in lines {awaits}"
    drawn = [
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_module(node.value, "random")
    ]
    assert set(drawn) <= {"Random"}, f"{module} draws by itself: a generator must be its argument"


def _is_module(node, name):
    return isinstance(node, ast.Name) and node.id == name


def test_what_the_rules_speak_of_exists():
    packages = {package(module) for module in SOURCES}
    assert {*LIBRARIES, *KAFKA_CLIENT, *KAFKA_CODEC, *PURE} <= packages
    assert {package(module) for module in SOURCES if is_pure(module)} >= {*PURE, "services.cli", "services.edge"}
