"""Produce, versions 3 to 7. Coded over struct: it is in every record's path."""

import logging
import struct
from typing import NamedTuple

from services.broker.batch import Refused
from services.broker.codes import Code
from services.broker.core import Broker, now_ms
from services.broker.log import NO_TIME
from services.broker.request import Answered, CloseConnection, Request
from services.broker.wire import Malformed, Reader

logger = logging.getLogger("railbus.broker")

_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_COUNT = struct.Struct(">i")
_PARTITION_SIZE = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqq")  # partition, error, base offset, append time
_RESULT_5 = struct.Struct(">ihqqq")  # and log start offset
_NO_OFFSET = -1
_THROTTLE = b"\0\0\0\0"


def produce(request: Request) -> Answered:
    """Append each partition's batch; no answer where the client asked for none."""
    reader, version = request.body, request.version
    transactional_id = reader.nullable_string()
    acks, _timeout_ms, topics = _unpack(_ACKS_TIMEOUT_COUNT, reader)
    out = bytearray(_COUNT.pack(topics))
    failed = Code.NONE
    for _ in range(topics):
        name = reader.string()
        encoded = name.encode()
        (partitions,) = _unpack(_COUNT, reader)
        out += struct.pack(">h", len(encoded)) + encoded + _COUNT.pack(partitions)
        for _ in range(partitions):
            partition, size = _unpack(_PARTITION_SIZE, reader)
            records = _records(reader, size)
            if transactional_id is not None:
                result = _Result(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            elif acks not in {-1, 0, 1}:
                result = _Result(Code.INVALID_REQUIRED_ACKS)
            else:
                result = _append(request.broker, name, partition, records, version)
            failed = failed or result.code
            out += _RESULT_5.pack(partition, *result) if version >= 5 else _RESULT.pack(partition, *result[:3])
    if acks == 0:
        if failed:  # the only way, Kafka's too, to tell a client that wants no answer
            raise CloseConnection(f"a produce request without acknowledgement failed: {failed.name}")
        return None
    return bytes(out + _THROTTLE)


class _Result(NamedTuple):
    """What is answered of one partition, in the wire's order."""

    code: Code
    offset: int = _NO_OFFSET
    time_ms: int = NO_TIME
    start: int = _NO_OFFSET


def _append(broker: Broker, topic: str, partition: int, records: memoryview, version: int) -> _Result:
    log = broker.log(topic, partition)
    if log is None:
        return _Result(Code.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        appended = log.produce(records, version, now_ms())
    except Refused as refused:
        logger.debug("%s-%d: %s", topic, partition, refused)
        return _Result(refused.code)
    except OSError as error:
        logger.error("%s-%d: a batch could not be kept in the data directory: %s", topic, partition, error.strerror)  # noqa: TRY400
        return _Result(Code.KAFKA_STORAGE_ERROR)
    if not appended.again:
        broker.appended(log, len(records))
    return _Result(Code.NONE, appended.offset, appended.time_ms, log.start)


def _records(reader: Reader, size: int) -> memoryview:
    begin, end = reader.pos, reader.pos + max(size, 0)
    if end > len(reader.data):
        raise Malformed(f"the request ends before {size} announced bytes of records")
    reader.pos = end
    return memoryview(reader.data)[begin:end]


def _unpack(form: struct.Struct, reader: Reader) -> tuple[int, ...]:
    try:
        values = form.unpack_from(reader.data, reader.pos)
    except struct.error:
        raise Malformed("the request ends in the middle of a number") from None
    reader.pos += form.size
    return values
