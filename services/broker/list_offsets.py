"""ListOffsets, versions 1 to 5: the first offset, the next one, or the first from a time on."""

from services.broker.codes import Code
from services.broker.core import Broker
from services.broker.request import Answered, Request
from services.broker.wire import Writer

_LATEST = -1
_EARLIEST = -2
_NONE = -1
_LEADER_EPOCH = 0


def list_offsets(request: Request) -> Answered:
    """For each partition the offset of what was asked; -1 where no record is that late."""
    reader, version, broker = request.body, request.version, request.broker
    reader.i32()  # replica
    if version >= 2:
        reader.i8()  # isolation level: without transactions both are the same

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


def _find(broker: Broker, topic: str, partition: int, time_ms: int) -> tuple[Code, int, int]:
    log = broker.log(topic, partition)
    if log is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, _NONE, _NONE
    if time_ms == _LATEST:
        return Code.NONE, _NONE, log.end
    if time_ms == _EARLIEST:
        return Code.NONE, _NONE, log.start
    if time_ms < 0:
        return Code.UNSUPPORTED_VERSION, _NONE, _NONE
    found = log.find_time(time_ms)
    return (Code.NONE, found.timestamp_ms, found.offset) if found is not None else (Code.NONE, _NONE, _NONE)
