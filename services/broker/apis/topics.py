"""Handlers of CreateTopics, DeleteTopics and CreatePartitions."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Reader, Writer
from services.broker.settings import NODE_ID
from services.broker.state import ApiRequest, BrokerState, now_ms
from services.broker.storage.error_log import STORAGE_FAILED, log_storage_error
from services.broker.storage.topics import TopicError

_DEFAULT = -1

TopicResult = tuple[str, ErrorCode, str | None]


class NewTopic(NamedTuple):
    name: str
    partitions: int
    replication: int
    assignment: list[tuple[int, list[int]]]
    settings: dict[str, str | None]


def create_topics(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    topics = reader.array(lambda: _new_topic(reader))
    reader.i32()  # timeout, ignored: topics are created at once
    validate_only = reader.boolean() if version >= 1 else False
    named = Counter(topic.name for topic in topics)
    outcomes = [
        _attempt(
            topic.name, partial(_create, broker, topic, times_named=named[topic.name], validate_only=validate_only)
        )
        for topic in {topic.name: topic for topic in topics}.values()
    ]
    out = Writer()
    if version >= 2:
        out.i32(0)
    return _write(out, outcomes, messages=version >= 1)


def _new_topic(reader: Reader) -> NewTopic:
    return NewTopic(
        name=reader.string(),
        partitions=reader.i32(),
        replication=reader.i16(),
        assignment=reader.array(lambda: (reader.i32(), reader.array(reader.i32))),
        settings=dict(reader.array(lambda: (reader.string(), reader.nullable_string()))),
    )


def _create(broker: BrokerState, topic: NewTopic, *, times_named: int, validate_only: bool) -> None:
    if times_named > 1:
        raise TopicError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    broker.topics.check_free(topic.name, topic.settings)
    partitions = topic.partitions
    if topic.assignment:
        partitions = len(topic.assignment)
        _check_assignment(topic)
    elif topic.replication not in {_DEFAULT, 1}:
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {topic.replication}; the embedded broker is one node and does not replicate.",
        )
    if partitions == _DEFAULT:
        partitions = broker.settings.partitions
    if validate_only:
        broker.topics.check_new(topic.name, partitions, topic.settings)
        return
    broker.topics.create(topic.name, partitions, topic.settings, now_ms=now_ms())


def _check_assignment(topic: NewTopic) -> None:
    if topic.partitions != _DEFAULT or topic.replication != _DEFAULT:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            "Both partitions/replication factor and an assignment were given; use one of them.",
        )
    if sorted(index for index, _ in topic.assignment) != list(range(len(topic.assignment))):
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 without a gap.")
    if any(replicas != [NODE_ID] for _, replicas in topic.assignment):
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The only broker there is has id {NODE_ID}.")


def delete_topics(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    named = Counter(reader.array(reader.string))
    outcomes = [_attempt(name, partial(_delete, broker, name, times)) for name, times in named.items()]
    out = Writer()
    if version >= 1:
        out.i32(0)
    return _write(out, outcomes, messages=False)


def _delete(broker: BrokerState, name: str, times_named: int) -> None:
    if times_named > 1:
        raise TopicError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    topic = broker.topics.delete(name)
    for log in topic.partitions:
        log.delete()
        broker.waiters.wake(log)  # waiting fetches must report the deletion to their clients
    broker.offsets.forget_topic(name)


def create_partitions(request: ApiRequest) -> ApiResponse:
    reader, broker = request.body, request.broker
    asked = reader.array(
        lambda: (reader.string(), reader.i32(), reader.nullable_array(lambda: reader.array(reader.i32)))
    )
    reader.i32()
    validate_only = reader.boolean()

    def grow(name: str, count: int, assignment: list[list[int]] | None) -> None:
        broker.topics.grow(name, count, now_ms=now_ms(), validate_only=True)
        if assignment is not None:
            _check_growth(count - len(broker.topics.existing(name).partitions), assignment)
        if not validate_only:
            broker.topics.grow(name, count, now_ms=now_ms(), validate_only=False)

    outcomes = [_attempt(item[0], partial(grow, *item)) for item in asked]
    return _write(Writer().i32(0), outcomes, messages=True)


def _check_growth(new: int, assignment: list[list[int]]) -> None:
    if len(assignment) != new:
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(assignment)} assignment(s) were given for {new} new partition(s).",
        )
    if any(replicas != [NODE_ID] for replicas in assignment):
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The only broker there is has id {NODE_ID}.")


def _attempt(name: str, action: Callable[[], object]) -> TopicResult:
    try:
        action()
    except TopicError as error:
        return name, error.code, str(error)
    except OSError as error:
        log_storage_error(f"topic {name}", error)
        return name, ErrorCode.KAFKA_STORAGE_ERROR, STORAGE_FAILED
    return name, ErrorCode.NONE, None


def _write(out: Writer, outcomes: list[TopicResult], *, messages: bool) -> bytes:
    def outcome(item: TopicResult) -> None:
        name, code, message = item
        out.string(name).i16(code)
        if messages:
            out.string(message)

    return out.array(outcomes, outcome).done()
