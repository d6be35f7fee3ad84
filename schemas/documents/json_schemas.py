"""Generate JSON Schemas (draft 2020-12) of the events. Their descriptions come from docstrings."""

import dataclasses
import inspect
import re
import sys
from dataclasses import is_dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from schemas import account_details
from schemas.registry import KINDS, Kind

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

JsonObject = dict[str, Any]

_ATTRIBUTE = re.compile(r"^(\w+): (.*)$")


def file_name(kind: str) -> str:
    return f"{kind}.schema.json"


def event_schema(kind: Kind) -> JsonObject:
    (_,), definitions = msgspec.json.schema_components([kind.cls])
    described = {name: _described(name, schema) for name, schema in definitions.items()}
    top = described.pop(kind.name)
    return {
        "$schema": DIALECT,
        "$id": f"urn:railbus:event:{kind.name}:{kind.version}",
        **top,
        **({"$defs": dict(sorted(described.items()))} if described else {}),
    }


def summary(cls: type) -> str:
    """Return a class's docstring up to its ``Attributes`` section, on one line."""
    text = inspect.getdoc(cls) or ""
    return _plain(text.split("\nAttributes:")[0])


def attribute_descriptions(cls: type) -> dict[str, str]:
    """Return the description of each field, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        found |= attribute_texts(inspect.cleandoc(ancestor.__doc__ or ""))
    each = dataclasses.fields(cls) if is_dataclass(cls) else structs.fields(cls)
    return {field.name: found[field.name] for field in each if field.name in found}


def attribute_texts(docstring: str) -> dict[str, str]:
    """Return the description of each attribute in the ``Attributes`` section of a docstring."""
    _, _, section = docstring.partition("\nAttributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc("\n" + section).splitlines():
        if match := _ATTRIBUTE.match(line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith(" "):
            found[name] += " " + line.strip()
    return {attribute: _plain(text) for attribute, text in found.items()}


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _described(name: str, schema: JsonObject) -> JsonObject:
    cls = _CLASSES[name]
    texts = attribute_descriptions(cls)
    properties = {
        field: {**rule, "description": texts[field]} if field in texts else rule
        for field, rule in schema["properties"].items()
    }
    return {**schema, "description": summary(cls), "properties": properties}


_CLASSES: Final[dict[str, type]] = {
    name: cls
    for module in (*(sys.modules[kind.cls.__module__] for kind in KINDS.values()), account_details)
    for name, cls in vars(module).items()
    if inspect.isclass(cls) and issubclass(cls, Struct)
}
"""By name, all structs that the modules with the events define or import. They include the types of all fields."""
