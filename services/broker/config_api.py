"""DescribeConfigs and AlterConfigs, for topics; a broker's own configuration is shown empty."""

from typing import NamedTuple

from services.broker.codes import Code
from services.broker.core import Broker
from services.broker.request import Answered, Request
from services.broker.topics import Topic, TopicError, check_name
from services.broker.wire import Reader, Writer

_TOPIC = 2
_BROKER = 4
_SET_ON_TOPIC = 1
_DEFAULT_SOURCE = 5


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
    reader, broker = request.body, request.broker
    asked = reader.array(lambda: _alteration(reader))
    validate_only = reader.boolean()
    out = Writer().i32(0)

    def resource(item: tuple[int, str, dict[str, str | None]]) -> None:
        kind, name, settings = item
        code, message = _alter(broker, kind, name, settings, validate_only=validate_only)
        out.i16(code).string(message).i8(kind).string(name)

    return out.array(asked, resource).done()


def _alteration(reader: Reader) -> tuple[int, str, dict[str, str | None]]:
    kind, name = reader.i8(), reader.string()
    return kind, name, dict(reader.array(lambda: (reader.string(), reader.nullable_string())))


def _alter(
    broker: Broker, kind: int, name: str, settings: dict[str, str | None], *, validate_only: bool
) -> tuple[Code, str | None]:
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
