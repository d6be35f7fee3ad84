"""Find what the reference is about by walking the packages: it does not matter in which module a thing stands."""

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN = ("schemas", "services")


@cache
def modules(marker: str) -> tuple[ModuleType, ...]:
    """Return the product's modules whose source has this text; importing all of them would take many seconds."""
    return tuple(
        importlib.import_module(module)
        for module, text in texts()
        if marker in text and not module.endswith(".__main__")
    )


@cache
def sources() -> tuple[tuple[str, ast.Module, str], ...]:
    """Return name, syntax tree and text of every module of the product. The trees take seconds to make."""
    return tuple((name, ast.parse(text), text) for name, text in texts())


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return name and text of every module of the product."""
    found = []
    for package in OWN:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append((name, text))
    return tuple(found)


def classes(wanted: Callable[[type], bool], marker: str) -> list[type]:
    """Return the classes that are wanted and defined where the source has the marker, in the order of the source."""
    return [
        value
        for module in modules(marker)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and wanted(value)
    ]


def constant(name: str) -> Any:
    """Return the module-level value of this name.

    Raises:
        LookupError: No module assigns it, or two do.
    """
    homes = [module for module, tree, _ in sources() if any(target == name for target, _ in assignments(tree))]
    if len(homes) != 1:
        msg = f"{name} must be assigned in one module, found: {', '.join(homes) or 'none'}"
        raise LookupError(msg)
    return getattr(importlib.import_module(homes[0]), name)


def assignments(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each module-level name that is assigned, with the text that documents it: the string literal behind it."""
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=False):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if isinstance(target, ast.Name):
            told = following.value if isinstance(following, ast.Expr) else None
            text = told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else ""
            yield target.id, one_line(text)


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return local name -> (module, name there) of everything that ``from ... import`` brings in, in functions too."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or method of one of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in names:
                yield node


def service_of(module: str) -> str:
    """Return the service a module belongs to: ``services.edge.http.app`` is of ``edge``."""
    parts = module.split(".")
    return parts[1] if parts[0] == "services" and len(parts) > 1 else parts[0]


def one_line(text: str) -> str:
    """Return a docstring's text as one line of Markdown."""
    return " ".join(text.replace("``", "`").split())


def sentence(text: str) -> str:
    """Return a text that begins with a capital and ends with a full stop."""
    text = one_line(text)
    if not text:
        return ""
    text = text if text.startswith("`") else text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else f"{text}."


def anchor(text: str) -> str:
    """Return an id for a heading, as the ``attr_list`` extension takes it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
