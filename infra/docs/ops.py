"""Generate the reference page of ops. An op is an instruction to a client, such as show or replace."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from infra.docs.discover import anchor, sentence
from infra.docs.tables import code, table
from schemas.documents.json_schemas import attribute_descriptions, summary
from services.stream.ops import Op, name_of


def ops() -> list[type]:
    return list(get_args(Op))


def body() -> str:
    text = ""
    for cls in ops():
        hints, meanings = get_type_hints(cls), attribute_descriptions(cls)
        text += f"\n### {name_of(cls)} {{ #op-{anchor(name_of(cls))} }}\n\n{sentence(summary(cls))}\n"
        text += table(
            ("field", "type", "meaning"),
            ((code(f.name), _kind(hints[f.name]), sentence(meanings.get(f.name, ""))) for f in fields(cls)),
        )
    return text


def undescribed() -> list[str]:
    return [
        f"{name_of(cls)}.{field.name}"
        for cls in ops()
        for field in fields(cls)
        if field.name not in attribute_descriptions(cls)
    ]


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(code, get_args(hint)))
    if issubclass(hint, Struct):
        name = hint.__name__
        return f"[{name}](events.md#{anchor(name)})"
    return {int: "whole number", str: "text"}[hint]
