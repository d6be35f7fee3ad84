"""Generate the reference page of the fields in ``policy.toml`` and ``patterns/*.toml``."""

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec

from infra.docs.discover import anchor, classes, one_line, sentence
from infra.docs.events import default_of, kind_of
from infra.docs.tables import code, table
from schemas.documents.json_schemas import attribute_texts


def body() -> str:
    text = ""
    for cls in classes(_is_written, "Struct"):
        schema = msgspec.json.schema_components([cls])[1].get(cls.__name__)
        if schema is None:
            continue
        told = inspect.getdoc(cls) or ""
        text += f"\n### {cls.__name__} {{ #policy-{anchor(cls.__name__)} }}\n\n"
        text += f"{sentence(told.partition('Attributes:')[0])}\n"
        rows = _fields(schema["properties"], schema.get("required", []), attribute_texts(told))
        text += table(("field", "type", "default", "meaning"), rows)
    return text


def _is_written(cls: type) -> bool:
    return (
        issubclass(cls, msgspec.Struct)
        and cls.__module__.startswith(("services.policy", "services.runtime.classes."))
        and cls.__struct_config__.forbid_unknown_fields
    )


def _fields(
    properties: dict[str, Any], required: list[str], meanings: dict[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    for name, rule in properties.items():
        default = "required" if name in required else default_of(rule)
        yield code(name), kind_of(rule), default, sentence(one_line(meanings.get(name, "")))
