"""Find classes, constants and calls in the source code, for the generated reference pages."""

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
    """Import and return the modules of ``schemas`` and ``services`` whose source contains the string ``marker``.

    ``__main__`` modules are left out.
    """
    return tuple(
        importlib.import_module(module)
        for module, text in texts()
        if marker in text and not module.endswith(".__main__")
    )


@cache
def sources() -> tuple[tuple[str, ast.Module, str], ...]:
    return tuple((name, ast.parse(text), text) for name, text in texts())


@cache
def texts() -> tuple[tuple[str, str], ...]:
    found = []
    for package in OWN:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append((name, text))
    return tuple(found)


def classes(wanted: Callable[[type], bool], marker: str) -> list[type]:
    """Return the classes for which ``wanted`` returns True, in the order of the source.

    Only modules whose source contains the string ``marker`` are searched.
    """
    return [
        value
        for module in modules(marker)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and wanted(value)
    ]


def constant(name: str) -> Any:
    """Return the value of a module-level name.

    Raises:
        LookupError: If no module assigns the name, or more than one does.
    """
    homes = [module for module, tree, _ in sources() if any(target == name for target, _ in assignments(tree))]
    if len(homes) != 1:
        msg = f"{name} must be assigned in one module, found: {', '.join(homes) or 'none'}"
        raise LookupError(msg)
    return getattr(importlib.import_module(homes[0]), name)


def assignments(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that a module assigns at its top level, with the text that documents the name.

    The text is the string literal that follows the assignment. If there is none, the text is empty.
    """
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=False):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if isinstance(target, ast.Name):
            told = following.value if isinstance(following, ast.Expr) else None
            text = told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else ""
            yield target.id, one_line(text)


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the names that ``from ... import`` brings in: local name -> (module, original name)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in names:
                yield node


def service_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "services" and len(parts) > 1 else parts[0]


def one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def sentence(text: str) -> str:
    text = one_line(text)
    if not text:
        return ""
    text = text if text.startswith("`") else text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else f"{text}."


def anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
