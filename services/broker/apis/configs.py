"""Handlers of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs for topics.

Only topics can be configured. The broker's own configuration is empty.
"""

from collections.abc import Callable
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Writer
from services.broker.state import ApiRequest, BrokerState
from services.broker.storage.error_log import STORAGE_FAILED, log_storage_error
from services.broker.storage.topics import TopicError, TopicState, check_name

_TOPIC = 2
_BROKER = 4
_SET_ON_TOPIC = 1
_DEFAULT_SOURCE = 5
_SET = 0
_DELETE = 1

ConfigEntries = dict[str, str | None]


class ConfigResource(NamedTuple):
    kind: int
    name: str
    wanted: list[str] | None  # names of the entries to return; None means all


def describe_configs(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    resources = reader.array(lambda: ConfigResource(reader.i8(), reader.string(), reader.nullable_array(reader.string)))
    out = Writer().i32(0)

    def resource(asked: ConfigResource) -> None:
        code, message, topic = _resolve(broker, asked.kind, asked.name)
        out.i16(code).string(message).i8(asked.kind).string(asked.name)
        entries = topic.config.entries() if topic is not None else {}
        shown = sorted((n, v) for n, v in entries.items() if asked.wanted is None or n in asked.wanted)
        given = topic.config.given if topic is not None else {}

        def entry(item: tuple[str, str]) -> None:
            name, value = item
            out.string(name).string(value).boolean(False)  # noqa: FBT003 - not read-only
            if version >= 1:
                out.i8(_SET_ON_TOPIC if name in given else _DEFAULT_SOURCE)
            else:
                out.boolean(name not in given)
            out.boolean(False)  # noqa: FBT003 - not sensitive
            if version >= 1:
                out.array([], out.string)  # no synonyms

        out.array(shown, entry)

    return out.array(resources, resource).done()


def _resolve(broker: BrokerState, kind: int, name: str) -> tuple[ErrorCode, str | None, TopicState | None]:
    if kind == _BROKER:
        return ErrorCode.NONE, None, None
    if kind != _TOPIC:
        return ErrorCode.INVALID_REQUEST, f"Unsupported resource type {kind}.", None
    try:
        check_name(name)
        return ErrorCode.NONE, None, broker.topics.existing(name)
    except TopicError as error:
        return error.code, str(error), None


def alter_configs(request: ApiRequest) -> ApiResponse:
    reader = request.body

    def change() -> Callable[[ConfigEntries], ConfigEntries]:
        settings = dict(reader.array(lambda: (reader.string(), reader.nullable_string())))
        return lambda _: settings

    return _alter_all(request, change)


def incremental_alter_configs(request: ApiRequest) -> ApiResponse:
    reader = request.body

    def change() -> Callable[[ConfigEntries], ConfigEntries]:
        entries = reader.array(lambda: (reader.string(), reader.i8(), reader.nullable_string()))
        return lambda given: _changed(given, entries)

    return _alter_all(request, change)


def _changed(given: ConfigEntries, entries: list[tuple[str, int, str | None]]) -> ConfigEntries:
    changed = dict(given)
    for name, operation, value in entries:
        if operation == _SET:
            changed[name] = value
        elif operation == _DELETE:
            changed.pop(name, None)
        else:
            raise TopicError(
                ErrorCode.INVALID_CONFIG, f"{name}: the embedded broker does not append to or subtract from lists."
            )
    return changed


def _alter_all(request: ApiRequest, read_change: Callable[[], Callable[[ConfigEntries], ConfigEntries]]) -> bytes:
    reader, broker = request.body, request.broker
    asked = reader.array(lambda: (reader.i8(), reader.string(), read_change()))
    validate_only = reader.boolean()
    out = Writer().i32(0)

    def resource(item: tuple[int, str, Callable[[ConfigEntries], ConfigEntries]]) -> None:
        kind, name, change = item
        code, message = _alter(broker, kind, name, change, validate_only=validate_only)
        out.i16(code).string(message).i8(kind).string(name)

    return out.array(asked, resource).done()


def _alter(
    broker: BrokerState, kind: int, name: str, change: Callable[[ConfigEntries], ConfigEntries], *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    topic = broker.topics.get(name) if kind == _TOPIC else None
    try:
        settings = change(dict(topic.config.given) if topic is not None else {})
    except TopicError as error:
        return error.code, str(error)
    if None in settings.values():
        return ErrorCode.INVALID_REQUEST, "A configuration may not be null; leave it out for its default."
    if kind != _TOPIC:
        return ErrorCode.INVALID_REQUEST, "The embedded broker only changes the configuration of topics."
    if not name:
        return ErrorCode.INVALID_REQUEST, "A topic's name is needed to change its configuration; none was given."
    try:
        check_name(name)
        broker.topics.configure(name, settings, validate_only=validate_only)
    except TopicError as error:
        return error.code, str(error)
    except OSError as error:
        log_storage_error(f"topic {name}", error)
        return ErrorCode.KAFKA_STORAGE_ERROR, STORAGE_FAILED
    return ErrorCode.NONE, None
