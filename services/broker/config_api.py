"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, for topics; a broker's own configuration is shown empty."""

from collections.abc import Callable
from typing import NamedTuple

from services.broker.codes import Code
from services.broker.core import Broker
from services.broker.request import Answered, Request
from services.broker.topics import Topic, TopicError, check_name
from services.broker.wire import Writer

_TOPIC = 2
_BROKER = 4
_SET_ON_TOPIC = 1
_DEFAULT_SOURCE = 5
_SET = 0
_DELETE = 1

Settings = dict[str, str | None]


class Resource(NamedTuple):
    """What is described."""

    kind: int
    name: str
    wanted: list[str] | None  # names of entries; None: all


def describe_configs(request: Request) -> Answered:
    """Each resource's entries."""
    reader, version, broker = request.body, request.version, request.broker
    resources = reader.array(lambda: Resource(reader.i8(), reader.string(), reader.nullable_array(reader.string)))
    out = Writer().i32(0)

    def resource(asked: Resource) -> None:
        code, message, topic = _resolve(broker, asked.kind, asked.name)
        out.i16(code).string(message).i8(asked.kind).string(asked.name)
        entries = topic.config.entries() if topic is not None else {}
        shown = sorted((n, v) for n, v in entries.items() if asked.wanted is None or n in asked.wanted)
        given = topic.config.given if topic is not None else {}

        def entry(item: tuple[str, str]) -> None:
            name, value = item
            out.string(name).string(value).boolean(False)  # noqa: FBT003 - may be changed
            if version >= 1:
                out.i8(_SET_ON_TOPIC if name in given else _DEFAULT_SOURCE)
            else:
                out.boolean(name not in given)
            out.boolean(False)  # noqa: FBT003 - no secret
            if version >= 1:
                out.array([], out.string)  # synonyms

        out.array(shown, entry)

    return out.array(resources, resource).done()


def _resolve(broker: Broker, kind: int, name: str) -> tuple[Code, str | None, Topic | None]:
    if kind == _BROKER:
        return Code.NONE, None, None
    if kind != _TOPIC:
        return Code.INVALID_REQUEST, f"Unsupported resource type {kind}.", None
    try:
        check_name(name)
        return Code.NONE, None, broker.topics.existing(name)
    except TopicError as error:
        return error.code, str(error), None


def alter_configs(request: Request) -> Answered:
    """Replace each topic's configuration."""
    reader = request.body

    def change() -> Callable[[Settings], Settings]:
        settings = dict(reader.array(lambda: (reader.string(), reader.nullable_string())))
        return lambda _: settings

    return _alter_all(request, change)


def incremental_alter_configs(request: Request) -> Answered:
    """Change the named entries of each topic's configuration; the others stay."""
    reader = request.body

    def change() -> Callable[[Settings], Settings]:
        entries = reader.array(lambda: (reader.string(), reader.i8(), reader.nullable_string()))
        return lambda given: _changed(given, entries)

    return _alter_all(request, change)


def _changed(given: Settings, entries: list[tuple[str, int, str | None]]) -> Settings:
    changed = dict(given)
    for name, operation, value in entries:
        if operation == _SET:
            changed[name] = value
        elif operation == _DELETE:
            changed.pop(name, None)
        else:
            raise TopicError(Code.INVALID_CONFIG, f"{name}: the embedded broker appends to and subtracts from no list.")
    return changed


def _alter_all(request: Request, read_change: Callable[[], Callable[[Settings], Settings]]) -> bytes:
    """Answer for each resource; `read_change` reads what turns the entries that a topic was given into its new ones."""
    reader, broker = request.body, request.broker
    asked = reader.array(lambda: (reader.i8(), reader.string(), read_change()))
    validate_only = reader.boolean()
    out = Writer().i32(0)

    def resource(item: tuple[int, str, Callable[[Settings], Settings]]) -> None:
        kind, name, change = item
        code, message = _alter(broker, kind, name, change, validate_only=validate_only)
        out.i16(code).string(message).i8(kind).string(name)

    return out.array(asked, resource).done()


def _alter(
    broker: Broker, kind: int, name: str, change: Callable[[Settings], Settings], *, validate_only: bool
) -> tuple[Code, str | None]:
    topic = broker.topics.get(name) if kind == _TOPIC else None
    try:
        settings = change(dict(topic.config.given) if topic is not None else {})
    except TopicError as error:
        return error.code, str(error)
    if None in settings.values():
        return Code.INVALID_REQUEST, "A configuration may not be null; leave it out for its default."
    if kind != _TOPIC:
        return Code.INVALID_REQUEST, "The embedded broker only changes the configuration of topics."
    if not name:
        return Code.INVALID_REQUEST, "A topic's configuration is changed by the topic's name; none was given."
    try:
        check_name(name)
        broker.topics.configure(name, settings, validate_only=validate_only)
    except TopicError as error:
        return error.code, str(error)
    return Code.NONE, None
