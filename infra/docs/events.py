"""Generate the parts of the reference pages that describe topics, events and enumerations."""

from collections.abc import Iterator
from typing import Any

from infra.docs.discover import anchor, constant, one_line, sentence
from infra.docs.tables import code, codes, table
from schemas.documents.json_schemas import event_schema
from schemas.registry import KINDS, ROLES, Kind, kinds_on
from schemas.topics import DAY_MS, DEFAULT_PARTITIONS, TOPICS

ENVELOPE = ("request_id", "tenant", "at", "source")
"""Fields that every event about a request has. The page of events does not repeat them for each event."""

FIELDS = ("field", "type", "default", "meaning")


def topics() -> str:
    rows = (
        (
            code(topic.name),
            codes(f"{kind.name}" for kind in kinds_on(topic)),
            topic.about,
            {"request_id": "request id", "tenant": "tenant", "batch_id": "batch id", "none": "none"}[topic.key],
            f"{DEFAULT_PARTITIONS}, or `RAILBUS_PARTITIONS`" if topic.spread == "requests" else "1",
            f"{topic.retention_ms // DAY_MS} d",
        )
        for topic in TOPICS
    )
    return table(("topic", "events", "what it holds", "key", "partitions", "kept"), rows)


def body() -> str:
    schemas = {kind: event_schema(kind) for kind in KINDS.values()}
    parts = {name: part for schema in schemas.values() for name, part in schema.get("$defs", {}).items()}
    text = "".join(_section(kind, schema) for kind, schema in schemas.items())
    text += "\n## Objects in the fields of events { #objects }\n"
    for name, part in sorted(parts.items()):
        text += f"\n### {name} {{ #{anchor(name)} }}\n\n{sentence(part.get('description', ''))}\n"
        text += table(FIELDS, _fields(part["properties"], part))
    return text


def meanings() -> str:
    text = ""
    for name, values in constant("MEANINGS").items():
        text += f"\n### {name} {{ #{anchor(name)} }}\n"
        text += table(("value", "meaning"), ((code(value), meaning) for value, meaning in values.items()))
    return text


def _section(kind: Kind, schema: dict[str, Any]) -> str:
    text = f"\n## {kind.name} {{ #{anchor(kind.name)} }}\n\n{sentence(schema['description'])}\n\n"
    for place in kind.access:
        writers = _roles(place.writers) or "no service yet"
        text += f"- On `{place.topic.name}`; written by {writers}, read by {_roles(place.readers)}.\n"
    common = set(ENVELOPE) if set(ENVELOPE) <= schema["properties"].keys() else set()
    if common:
        text += "- Has the [fields of every event about a request](#envelope), and\n"
    own = {name: rule for name, rule in schema["properties"].items() if name not in common}
    return text + table(FIELDS, _fields(own, schema))


def _fields(properties: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for name, rule in properties.items():
        default = "required" if name in schema.get("required", ()) else default_of(rule)
        yield code(name), kind_of(rule, ""), default, sentence(one_line(rule.get("description", "")))


def default_of(rule: dict[str, Any]) -> str:
    value = rule.get("default")
    if "default" not in rule or isinstance(value, dict):
        return "its own defaults"
    if value == "":
        return code('""')
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(value)


def kind_of(rule: dict[str, Any], links: str | None = None) -> str:
    if "anyOf" in rule:
        return " or ".join(kind_of(one, links) for one in rule["anyOf"] if one.get("type") != "null")
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        return f"[{name}]({links}#{anchor(name)})" if links is not None else name
    if "enum" in rule:
        return " or ".join(code(value) for value in rule["enum"] if value is not None)
    if "const" in rule:
        return code(rule["const"])
    if rule.get("type") == "array":
        inside = rule.get("items")
        return "list" if not isinstance(inside, dict) else f"list of {kind_of(inside, links)}"
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "object": "object",
    }
    return names.get(str(rule.get("type")), "any") + _bounds(rule)


def _bounds(rule: dict[str, Any]) -> str:
    low, high = rule.get("minimum", rule.get("exclusiveMinimum")), rule.get("maximum")
    if low is not None and high is not None and high < 2**53:
        return f", {low:,} to {high:,}"
    if low is not None:
        return f", at least {low:,}" if low else ""
    most = rule.get("maxLength")
    return f", at most {most:,} characters" if most else ""


def _roles(found: Any) -> str:
    return ", ".join(code(role) for role in ROLES if role in found)
