"""Generate the reference page of environment variables."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from infra.docs.discover import (
    ROOT,
    anchor,
    assignments,
    calls,
    classes,
    imports,
    modules,
    sentence,
    service_of,
    sources,
)
from infra.docs.tables import code, codes, table
from schemas.documents.json_schemas import attribute_descriptions, summary

VARIABLE = re.compile(r"RAILBUS_[A-Z0-9_]*[A-Z0-9]")
UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_bytes": "bytes",
    "_gib": "GiB",
    "_chars": "characters",
    "_usd_per_hour": "US dollars an hour",
    "_usd_per_m_input": "US dollars for a million tokens",
    "_usd_per_m_output": "US dollars for a million tokens",
    "_ms_per_1000_chars": "milliseconds for 1,000 characters",
    "_tokens": "tokens",
    "_usd_per_engine_s": "US dollars a second",
    "rate_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "resumes_per_minute": "streams a minute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    allowed: str
    default: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    title: str
    about: str
    readers: tuple[str, ...]
    settings: tuple[Setting, ...]


@cache
def groups() -> tuple[Group, ...]:
    found = []
    for cls in _classes():
        group = Group(
            title=_title(cls), about=summary(cls), readers=tuple(sorted(_readers(cls))), settings=tuple(_settings(cls))
        )
        found.append(group)
    return (*sorted(found, key=lambda group: group.title.lower()), _others(found))


def body() -> str:
    text = f"There are {len(names())} variables.\n"
    for group in groups():
        text += f"\n## {group.title} {{ #{anchor(group.title)} }}\n\n"
        readers = ("railbus" if reader == "cli" else reader for reader in group.readers)  # the name of the program
        text += f"{sentence(group.about)} Read by {codes(readers)}.\n"
        rows = (
            (code(one.name), one.allowed + (f", in {one.unit}" if one.unit else ""), one.default, one.meaning)
            for one in group.settings
        )
        text += table(("variable", "takes", "default", "meaning"), rows)
    return text


def names() -> set[str]:
    return {one.name for group in groups() for one in group.settings}


def undescribed() -> list[str]:
    return [one.name for group in groups() for one in group.settings if not one.meaning]


def named_in_code() -> set[str]:
    return {name for _, _, text in sources() for name in VARIABLE.findall(text)}


@cache
def _classes() -> tuple[type, ...]:
    return tuple(classes(_is_settings, "kw_only=True"))


def _is_settings(cls: type) -> bool:
    return is_dataclass(cls) and any("help" in field.metadata for field in fields(cls))


def _settings(cls: type) -> Iterator[Setting]:
    hints, texts = get_type_hints(cls), attribute_descriptions(cls)
    nested = {each.name for each in fields(cls) if is_dataclass(hints[each.name])}  # these have sections of their own
    inside = {one.name for name in nested for one in _library("Variable")(hints[name])}
    own = [one for one in _library("Variable")(cls) if one.name not in inside]
    for field, read in zip((each for each in fields(cls) if each.name not in nested), own, strict=True):
        yield Setting(
            name=read.name,
            allowed=read.allowed,
            default=_default(field),
            unit=_unit(field.name, hints[field.name]),
            meaning=sentence(texts.get(field.name) or str(field.metadata.get("help", ""))),
        )


def _default(field: Field[Any]) -> str:
    value = field.default
    if value is MISSING or value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return code("on" if value else "off")
    if isinstance(value, Path) and value.is_absolute():
        value = value.relative_to(ROOT)  # beside the code, wherever that is
    return code(f"{value:g}" if isinstance(value, float) else value)


def _unit(name: str, hint: Any) -> str:
    if hint not in {int, float}:
        return ""
    return next((unit for end, unit in sorted(UNITS.items(), key=lambda item: -len(item[0])) if name.endswith(end)), "")


def _title(cls: type) -> str:
    name = cls.__name__.removesuffix("Settings") or cls.__module__.removesuffix(".settings").rpartition(".")[2]
    return name[0].upper() + name[1:]


def _readers(cls: type) -> set[str]:
    inside = [outer for outer in _classes() if any(hint is cls for hint in get_type_hints(outer).values())]
    found = {service_of(module) for module, loaded in _loads() if loaded is cls}
    return found.union(*(_readers(outer) for outer in inside))


@cache
def _library(returned: str) -> Callable[..., Any]:
    (library,) = (module for module in modules("class Variable") if module.__name__.startswith("services"))
    for value in vars(library).values():
        told = getattr(value, "__annotations__", {}).get("return") if inspect.isfunction(value) else None
        if told is not None and returned in str(told) and not value.__name__.startswith("_"):
            return value
    msg = f"{library.__name__} has no function that returns {returned}"
    raise LookupError(msg)


@cache
def _loads() -> tuple[tuple[str, type], ...]:
    found = []
    for module, tree, _ in sources():
        names = imports(tree)
        for call in calls(tree, _library("Settings").__name__):
            loaded = getattr(call.args[0], "id", "") if call.args else ""
            if loaded in names:
                home, name = names[loaded]
                value = getattr(importlib.import_module(home), name, None)
                if isinstance(value, type):
                    found.append((module, value))
    return tuple(found)


def _others(found: Iterable[Group]) -> Group:
    known = {one.name for group in found for one in group.settings}
    settings, readers = [], set()
    for module, tree, _ in sources():
        texts = dict(assignments(tree))
        for name, text in texts.items():
            value = getattr(importlib.import_module(module), name, None) if _names_a_variable(tree, name) else None
            if isinstance(value, str) and value not in known:
                known.add(value)
                readers.add(service_of(module))
                settings.append(Setting(name=value, allowed="text", default="", unit="", meaning=sentence(text)))
    return Group(
        title="Others", about="Variables that a program reads by itself", readers=tuple(sorted(readers)),
        settings=tuple(sorted(settings, key=lambda one: one.name)),
    )  # fmt: skip


def _names_a_variable(tree: Any, name: str) -> bool:
    for node in tree.body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if getattr(target, "id", None) == name:
            value = getattr(getattr(node, "value", None), "value", None)
            return isinstance(value, str) and bool(re.fullmatch(r"(RAILBUS|JAILGUARD)_[A-Z0-9_]+[A-Z0-9]", value))
    return False
