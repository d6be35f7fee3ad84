"""Generate the reference page of HTTP endpoints, request bodies, and websocket messages."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import orjson

from infra.docs.discover import anchor, calls, classes, constant, one_line, sentence, service_of, sources
from infra.docs.events import kind_of
from infra.docs.tables import code, codes, table
from schemas.documents.json_schemas import attribute_texts, event_schema
from schemas.registry import KINDS
from services.runtime.chat_body import ChatBody

METHODS = ("get", "post", "put", "delete", "head")


@cache
def routes() -> tuple[tuple[str, str, str, str], ...]:
    """Return the service, method, path and description of every HTTP route."""
    found = set()
    for module, tree, _ in sources():
        for scope in ast.walk(tree):
            if isinstance(scope, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {(service_of(module), *route) for route in _routes(scope, tree)}
    return tuple(sorted(found, key=lambda route: (route[0], route[2], route[1])))


def endpoints(service: str) -> str:
    rows = ((code(f"{method} {path}"), sentence(text)) for own, method, path, text in routes() if own == service)
    return table(("endpoint", "what it does"), rows)


def request_body() -> str:
    text = ""
    for cls in _bodies():
        schema = msgspec.json.schema_components([cls])[1][cls.__name__]
        text += f"\n### {cls.__name__} {{ #body-{anchor(cls.__name__)} }}\n\n"
        text += f"{sentence((inspect.getdoc(cls) or '').partition('Attributes:')[0])}\n"
        text += table(("field", "type", "meaning"), _fields(schema["properties"], _meanings(cls)))
    return text


def undescribed() -> list[str]:
    """Return the fields of request bodies that no docstring describes."""
    return [
        f"{cls.__name__}.{field.encode_name}"
        for cls in _bodies()
        for field in msgspec.structs.fields(cls)
        if not _meanings(cls).get(field.encode_name)
    ]


def parameters() -> str:
    refused = {
        name: [value for value in values if value is not None] for name, values in constant("REFUSED_UNLESS").items()
    }
    rows = [
        (code(name), "refused", codes(orjson.dumps(value).decode() for value in values) or "only `null`")
        for name, values in sorted(refused.items())
    ]
    rows += [(code(name), "taken and not used", "any") for name in sorted(constant("ACCEPTED_UNUSED"))]
    return table(("parameter", "what happens", "values that are allowed"), rows)


def messages() -> str:
    text = "\n### From the client\n"
    text += table(("type", "meaning"), ((code(name), said) for name, said in constant("CLIENT_MESSAGES").items()))
    text += "\n### From the server\n"
    text += table(("type", "meaning"), ((code(name), said) for name, said in constant("SERVER_MESSAGES").items()))
    text += "\n### Close codes\n"
    closes = constant("CLOSE_CODES").items()
    return text + table(("code", "reason"), ((code(number), said.decode()) for _, (number, said) in closes))


def said_in_code() -> set[str]:
    """Return the string under the key ``type`` of every dict literal in the source code of the edge."""
    found = set()
    for module, tree, _ in sources():
        for node in ast.walk(tree) if service_of(module) == "edge" else ():
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                if getattr(key, "value", None) == "type" and isinstance(getattr(value, "value", None), str):
                    found.add(value.value)
    return found


@cache
def _bodies() -> tuple[type, ...]:
    found = reversed(classes(_is_body, "Struct"))
    return tuple(sorted(found, key=lambda cls: not issubclass(cls, ChatBody)))


def _meanings(cls: type) -> dict[str, str]:
    """Return the description of each field of a class, including the fields that a base class describes."""
    tag = cls.__struct_config__.tag_field  # type: ignore[attr-defined]
    texts = {tag: f"Always `{cls.__struct_config__.tag}`"} if tag else {}  # type: ignore[attr-defined]
    for one in reversed(cls.__mro__):
        texts |= attribute_texts(inspect.cleandoc(one.__doc__ or ""))
    return texts


def _fields(properties: dict[str, Any], meanings: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, rule in properties.items():
        yield code(name), _kind(rule), sentence(one_line(meanings.get(name, "")))


@cache
def _objects() -> tuple[str, ...]:
    return tuple(sorted({name for kind in KINDS.values() for name in event_schema(kind).get("$defs", {})}))


def _kind(rule: dict[str, Any]) -> str:
    text = kind_of(rule)
    for name in _objects():
        text = re.sub(rf"\b{name}$", f"[{name}](events.md#{anchor(name)})", text)
    for cls in _bodies():
        text = re.sub(rf"\b{cls.__name__}\b", f"[{cls.__name__}](#body-{anchor(cls.__name__)})", text)
    return text


def _is_body(cls: type) -> bool:
    homes = ("services.edge", "services.runtime.chat_body")
    return issubclass(cls, msgspec.Struct) and cls is not ChatBody and cls.__module__.startswith(homes)


def _routes(scope: ast.AST, tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    handlers = {
        node.name: ast.get_docstring(node) or "" for node in getattr(scope, "body", ()) if isinstance(node, kinds)
    }
    for call in calls(scope, *METHODS):
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "web" and len(call.args) > 1:
            handler = getattr(call.args[1], "attr", getattr(call.args[1], "id", ""))
            if handler in handlers:
                for path in _paths(call.args[0], scope, tree):
                    shown = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", path)  # without the pattern that a part must match
                    yield call.func.attr.upper(), shown, handlers[handler].partition("\n\n")[0]


def _paths(node: ast.expr, scope: ast.AST, tree: ast.Module) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    constants = [each for each in tree.body if isinstance(each, ast.AnnAssign)]
    names = _sources_of(node, scope)
    named = [each.value for each in constants if getattr(each.target, "id", "") in names and each.value is not None]
    if named:
        texts = [part.value for value in named for part in ast.walk(value) if isinstance(part, ast.Constant)]
        return [text for text in texts if isinstance(text, str)]
    tables = [each.value for each in constants if isinstance(each.value, ast.Dict)]
    keys = [key.value for one in tables for key in one.keys if isinstance(key, ast.Constant)]
    return [key for key in keys if isinstance(key, str) and key.startswith("/")]


def _sources_of(node: ast.expr, scope: ast.AST) -> set[str]:
    """Return the names of the collections from which the variable ``node`` gets its values.

    For the variable ``x`` in ``[f(x) for x in PATHS]``, the result is ``{"PATHS"}``. If no comprehension in ``scope``
    binds the variable, the result is the variable's own name.
    """
    name = getattr(node, "id", "")
    loops = [each for each in ast.walk(scope) if isinstance(each, ast.comprehension)]
    return {getattr(each.iter, "id", "") for each in loops if getattr(each.target, "id", "") == name} or {name}
