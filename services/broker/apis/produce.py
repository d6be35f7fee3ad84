"""Handler of Produce, versions 3 to 7."""

import logging
import struct
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.record_batch import BatchRejected
from services.broker.protocol.responses import ApiResponse, CloseConnection
from services.broker.protocol.wire import MalformedRequest, Reader
from services.broker.state import ApiRequest, BrokerState, now_ms
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.partition_log import NO_TIME

logger = logging.getLogger("railbus.broker")

_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_COUNT = struct.Struct(">i")
_PARTITION_SIZE = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqq")  # partition, error, base offset, append time
_RESULT_5 = struct.Struct(">ihqqq")  # the same, and the log start offset
_NO_OFFSET = -1
_THROTTLE = b"\0\0\0\0"


def produce(request: ApiRequest) -> ApiResponse:
    reader, version = request.body, request.version
    data = reader.data
    transactional_id = reader.nullable_string()
    acks, _timeout_ms, topics = _unpack(_ACKS_TIMEOUT_COUNT, reader)
    out = bytearray(_COUNT.pack(topics))
    failed = ErrorCode.NONE
    for _ in range(topics):
        name_from = reader.pos
        name = reader.string()
        out += data[name_from : reader.pos]
        (partitions,) = _unpack(_COUNT, reader)
        out += _COUNT.pack(partitions)
        for _ in range(partitions):
            partition, size = _unpack(_PARTITION_SIZE, reader)
            begin = reader.pos
            reader.pos = end = begin + max(size, 0)
            if end > len(data):
                raise MalformedRequest(f"the request ends before {size} announced bytes of records")
            records = data[begin:end]
            if transactional_id is not None:
                result = _Result(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            elif acks not in {-1, 0, 1}:
                result = _Result(ErrorCode.INVALID_REQUIRED_ACKS)
            else:
                result = _append(request.broker, name, partition, records, version)
            failed = failed or result.code
            out += _RESULT_5.pack(partition, *result) if version >= 5 else _RESULT.pack(partition, *result[:3])
    if acks == 0:
        if failed:  # as in Kafka, closing the connection is the only way to report an error here
            raise CloseConnection(f"a produce request without acknowledgement failed: {failed.name}")
        return None
    return bytes(out + _THROTTLE)


class _Result(NamedTuple):
    # In wire order:
    code: ErrorCode
    offset: int = _NO_OFFSET
    time_ms: int = NO_TIME
    start: int = _NO_OFFSET


def _append(broker: BrokerState, topic: str, partition: int, records: bytes, version: int) -> _Result:
    log = broker.log(topic, partition)
    if log is None:
        return _Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        appended = log.produce(records, version, now_ms())
    except BatchRejected as refused:
        logger.debug("%s-%d: %s", topic, partition, refused)
        return _Result(refused.code)
    except OSError as error:
        log_storage_error(f"{topic}-{partition}", error)
        return _Result(ErrorCode.KAFKA_STORAGE_ERROR)
    if not appended.duplicate:
        broker.appended(log, len(records))
    return _Result(ErrorCode.NONE, appended.offset, appended.time_ms, log.start)


def _unpack(form: struct.Struct, reader: Reader) -> tuple[int, ...]:
    try:
        values = form.unpack_from(reader.data, reader.pos)
    except struct.error:
        raise MalformedRequest("the request ends in the middle of a number") from None
    reader.pos += form.size
    return values
