"""Handler of ListOffsets, versions 1 to 5."""

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Writer
from services.broker.state import ApiRequest, BrokerState
from services.broker.storage.error_log import log_storage_error

_LATEST = -1
_EARLIEST = -2
_NONE = -1
_LEADER_EPOCH = 0


def list_offsets(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    reader.i32()  # replica
    if version >= 2:
        reader.i8()  # isolation level; without transactions, both levels are the same

    def asked() -> tuple[int, int]:
        partition = reader.i32()
        if version >= 4:
            reader.i32()  # current leader epoch
        return partition, reader.i64()

    topics = reader.array(lambda: (reader.string(), reader.array(asked)))
    out = Writer()
    if version >= 2:
        out.i32(0)

    def result(topic: str, partition: int, time_ms: int) -> None:
        code, stamp, offset = _find(broker, topic, partition, time_ms)
        out.i32(partition).i16(code).i64(stamp).i64(offset)
        if version >= 4:
            out.i32(_LEADER_EPOCH if offset >= 0 else _NONE)

    def topic(item: tuple[str, list[tuple[int, int]]]) -> None:
        name, partitions = item
        out.string(name).array(partitions, lambda each: result(name, *each))

    return out.array(topics, topic).done()


def _find(broker: BrokerState, topic: str, partition: int, time_ms: int) -> tuple[ErrorCode, int, int]:
    log = broker.log(topic, partition)
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NONE, _NONE
    if time_ms == _LATEST:
        return ErrorCode.NONE, _NONE, log.end
    if time_ms == _EARLIEST:
        return ErrorCode.NONE, _NONE, log.start
    if time_ms < 0:
        return ErrorCode.UNSUPPORTED_VERSION, _NONE, _NONE
    try:
        found = log.find_time(time_ms)
    except OSError as error:
        log_storage_error(f"{topic}-{partition}", error, "read")
        return ErrorCode.KAFKA_STORAGE_ERROR, _NONE, _NONE
    return (ErrorCode.NONE, found.timestamp_ms, found.offset) if found is not None else (ErrorCode.NONE, _NONE, _NONE)
