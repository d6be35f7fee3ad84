"""Generate the reference page of ops, the instructions to a client, such as show and replace."""

from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from infra.docs.discover import anchor, classes, sentence
from infra.docs.tables import code, table
from schemas.documents.json_schemas import attribute_descriptions, summary


def ops() -> list[type]:
    return classes(_is_op, "op: Literal")


def _is_op(cls: type) -> bool:
    return is_dataclass(cls) and any(field.name == "op" and isinstance(field.default, str) for field in fields(cls))


def name_of(cls: type) -> str:
    return next(str(field.default) for field in fields(cls) if field.name == "op")


def body() -> str:
    text = ""
    for cls in ops():
        hints, meanings = get_type_hints(cls), attribute_descriptions(cls)
        own = [field for field in fields(cls) if field.name != "op"]
        text += f"\n### {name_of(cls)} {{ #op-{anchor(name_of(cls))} }}\n\n{sentence(summary(cls))}\n"
        text += table(
            ("field", "type", "meaning"),
            ((code(f.name), _kind(hints[f.name]), sentence(meanings.get(f.name, ""))) for f in own),
        )
    return text


def undescribed() -> list[str]:
    return [
        f"{name_of(cls)}.{field.name}"
        for cls in ops()
        for field in fields(cls)
        if field.name != "op" and field.name not in attribute_descriptions(cls)
    ]


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(code, get_args(hint)))
    if is_dataclass(hint):
        name = hint.__name__
        return f"[{name}](events.md#{anchor(name)})"
    return {int: "whole number", str: "text"}[hint]
