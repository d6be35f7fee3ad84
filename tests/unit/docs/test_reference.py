"""Test that the reference pages list every setting, metric, command, event and so on, each with a description."""

import ast
from typing import Any, get_args, get_origin

import pytest

from infra.docs import commands, errors, hooks, http, metrics, ops, settings
from infra.docs.discover import ROOT, constant, modules, sources
from schemas.acls import grants
from schemas.documents.meanings import MEANINGS
from schemas.registry import GROUPS, KINDS, ROLES
from schemas.topics import TOPICS

pytestmark = pytest.mark.slow  # it imports every service

# Names in messages and docstrings that stand for several variables or are examples.
NOT_VARIABLES = {"RAILBUS_KAFKA_SSL", "RAILBUS_MAX_JOBS", "RAILBUS_NAME"}


def page(name: str) -> str:
    return hooks.filled((ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8"))


def test_every_setting_is_there_and_described() -> None:
    text = page("settings")

    assert len(settings.names()) >= 118
    assert [name for name in settings.names() if f"| `{name}` |" not in text] == []
    assert settings.undescribed() == []
    assert settings.named_in_code() - settings.names() - NOT_VARIABLES == set()


def test_rates_and_prices_have_the_unit_of_what_they_limit() -> None:
    units = {one.name: one.unit for group in settings.groups() for one in group.settings}
    assert units["RAILBUS_RATE_PER_MINUTE"] == "requests a minute"
    assert units["RAILBUS_TOKENS_PER_MINUTE"] == "tokens a minute"
    assert units["RAILBUS_RESUMES_PER_MINUTE"] == "streams a minute"
    assert units["RAILBUS_LEDGER_USD_PER_ENGINE_S"] == "US dollars a second"


def test_every_class_of_settings_is_read_by_a_service() -> None:
    assert [group.title for group in settings.groups() if not group.readers] == []


def test_no_description_repeats_a_path_of_this_machine() -> None:
    assert str(ROOT) not in "".join(part() for part in hooks.PARTS.values())


def test_every_metric_is_there_and_described() -> None:
    text = page("metrics")
    made = {
        node.args[0].value
        for module, tree, _ in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Counter", "Gauge", "Histogram", "Summary"}
        if node.args and isinstance(node.args[0], ast.Constant) and module.startswith("services")
    }

    assert made
    assert {metric._name for metric in metrics.metrics()} == made
    assert [metric._name for metric in metrics.metrics() if f"| `{metrics.scraped(metric)}` |" not in text] == []
    assert [metric._name for metric in metrics.metrics() if len(metric._documentation) < 15] == []


def test_every_error_that_the_edge_makes_has_its_row() -> None:
    text, known = page("error-codes"), constant("ERROR_CODES")

    assert {code for _, code in errors.raised()} == set(known)
    assert [pair for pair in errors.raised() if pair[0] not in known[pair[1]].statuses] == []
    assert [code for code, row in known.items() if not (row.meaning and row.remedy and f"| `{code}` |" in text)] == []


def test_every_op_is_there_with_its_fields() -> None:
    text = page("ops")

    assert {ops.name_of(cls) for cls in ops.ops()} == {
        "begin", "show", "replace", "withdraw", "restart", "refuse", "finish", "close"
    }  # fmt: skip
    assert [ops.name_of(cls) for cls in ops.ops() if f"### {ops.name_of(cls)} " not in text] == []
    assert ops.undescribed() == []


def test_every_field_of_a_request_body_is_there_and_described() -> None:
    text = page("http")

    assert [
        name for name in ("messages", "role", "content", "max_tokens", "railbus") if f"| `{name}` |" not in text
    ] == []
    assert http.undescribed() == []


def test_every_event_and_topic_is_there() -> None:
    text = page("events")

    assert [name for name in KINDS if f"\n## {name} " not in text] == []
    assert [topic.name for topic in TOPICS if f"| `{topic.name}` |" not in text] == []


def _enumerations() -> dict[str, Any]:
    return {
        name: value
        for module in modules(" = Literal[")
        if module.__name__.startswith("schemas")
        for name, value in vars(module).items()
        if str(get_origin(value)) == "typing.Literal"
    }


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_every_value_of_an_enumeration_has_a_meaning(name: str) -> None:
    values = {inner for value in get_args(_enumerations()[name]) for inner in (get_args(value) or (value,))}

    assert set(MEANINGS[name]) == values


def test_every_enumeration_of_the_events_has_meanings() -> None:
    plain = {"MessageRole", "Conclusion", "RoleName"}  # who speaks; a part of Cause; the services

    assert set(_enumerations()) - plain == set(MEANINGS)


def test_every_command_is_there_and_every_argument_described() -> None:
    text = page("commands")

    assert {f"railbus {name}" for name in ("up", "ask", "demo", "tail", "topics", "doctor")} <= commands.commands()
    assert {name: text.count(f"\n## {name} ") for name in commands.commands()} == dict.fromkeys(commands.commands(), 1)
    assert commands.undescribed() == []


def test_every_endpoint_and_message_is_there() -> None:
    text = page("http")
    content_types = {"text"}  # parts of a message have a type, too

    assert {"/v1/chat/completions", "/v1/stream", "/metrics", "/readyz"} <= {path for *_, path, _ in http.routes()}
    assert [route for route in http.routes() if route[0] in {"edge", "runtime"} and not route[3]] == []
    assert [
        path for service, method, path, _ in http.routes() if service == "edge" and f"`{method} {path}`" not in text
    ] == []
    assert http.said_in_code() - content_types <= set(constant("SERVER_MESSAGES"))


def test_every_right_on_kafka_is_there() -> None:
    text = page("acls")

    for role in ROLES:
        rows = [line for line in text.splitlines() if line.startswith(f"| `{role}` |")]
        assert len(rows) == 1 + len(grants(role))
        for grant in grants(role):
            names = [f"`{name}`" for name in grant.names]
            assert [row for row in rows if all(part in row for part in (*grant.operations, *names))], grant
        assert all(f"`{group}`" in rows[0] for group in GROUPS[role])
