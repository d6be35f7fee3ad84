"""Handlers of Metadata, FindCoordinator and InitProducerId."""

import itertools
import logging

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Writer
from services.broker.settings import CLUSTER_ID, NODE_ID
from services.broker.state import ApiRequest, BrokerState, now_ms
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.topics import TopicError, TopicState, check_name

logger = logging.getLogger("railbus.broker")

_NO_RACK = None
_UNKNOWN_OPERATIONS = -(2**31)
_LEADER_EPOCH = 0
_NO_TRANSACTIONS = "The embedded broker does not support transactions; use Apache Kafka."
_COORDINATES: dict[int, tuple[ErrorCode, str | None]] = {
    0: (ErrorCode.NONE, None),  # groups
    1: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS),
}


def metadata(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    names = reader.nullable_array(reader.string)
    may_create = reader.boolean() if version >= 4 else True
    if names is None or (version == 0 and not names):
        names = [topic.name for topic in broker.topics]
    found = [(name, *_topic(broker, name, may_create=may_create)) for name in dict.fromkeys(names)]
    out = Writer()
    _write_node(out, broker, version)
    out.array(found, lambda item: _write_topic(out, version, *item))
    if version >= 8:
        out.i32(_UNKNOWN_OPERATIONS)
    return out.done()


def _write_node(out: Writer, broker: BrokerState, version: int) -> None:
    if version >= 3:
        out.i32(0)
    out.i32(1).i32(NODE_ID).string(broker.settings.host).i32(broker.port)
    if version >= 1:
        out.string(_NO_RACK)
    if version >= 2:
        out.string(CLUSTER_ID)
    if version >= 1:
        out.i32(NODE_ID)  # the controller


def _write_topic(out: Writer, version: int, name: str, code: ErrorCode, topic: TopicState | None) -> None:
    out.i16(code).string(name)
    if version >= 1:
        out.i8(0)  # not an internal topic
    count = len(topic.partitions) if topic is not None else 0
    out.array(range(count), lambda index: _write_partition(out, version, index))
    if version >= 8:
        out.i32(_UNKNOWN_OPERATIONS)


def _write_partition(out: Writer, version: int, index: int) -> None:
    out.i16(ErrorCode.NONE).i32(index).i32(NODE_ID)
    if version >= 7:
        out.i32(_LEADER_EPOCH)
    out.array([NODE_ID], out.i32).array([NODE_ID], out.i32)  # replicas, and those in sync
    if version >= 5:
        out.array([], out.i32)  # offline replicas


def _topic(broker: BrokerState, name: str, *, may_create: bool) -> tuple[ErrorCode, TopicState | None]:
    topic = broker.topics.get(name)
    if topic is not None:
        return ErrorCode.NONE, topic
    try:
        check_name(name)
        if not (may_create and broker.settings.auto_create_topics):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        topic = broker.topics.create(name, broker.settings.partitions, {}, now_ms=now_ms())
    except TopicError as error:
        return error.code, None
    except OSError as error:
        log_storage_error(f"topic {name}", error)
        return ErrorCode.KAFKA_STORAGE_ERROR, None
    logger.info("created topic %s with %d partition(s) at its first use", name, broker.settings.partitions)
    return ErrorCode.NONE, topic


def find_coordinator(request: ApiRequest) -> ApiResponse:
    reader, version = request.body, request.version
    reader.string()
    kind = reader.i8() if version >= 1 else 0
    out = Writer()
    if version >= 1:
        out.i32(0)
    code, message = _COORDINATES.get(kind, (ErrorCode.INVALID_REQUEST, "Unknown kind of coordinator."))
    out.i16(code)
    if version >= 1:
        out.string(message)
    if code:
        return out.i32(-1).string("").i32(-1).done()
    return out.i32(NODE_ID).string(request.broker.settings.host).i32(request.broker.port).done()


# The ids start from the clock, so that no id is used again after a restart. Otherwise, a partition could take a new
# producer for an old one.
_producer_ids = itertools.count(now_ms() << 16)


def init_producer_id(request: ApiRequest) -> ApiResponse:
    transactional_id = request.body.nullable_string()
    request.body.i32()
    out = Writer().i32(0)
    if transactional_id is not None:
        return out.i16(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED).i64(-1).i16(-1).done()
    return out.i16(ErrorCode.NONE).i64(next(_producer_ids)).i16(0).done()
