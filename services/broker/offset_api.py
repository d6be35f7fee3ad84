"""OffsetCommit and OffsetFetch."""

import logging

from services.broker.codes import Code
from services.broker.core import Broker
from services.broker.group_timers import clock_ms
from services.broker.offsets import MAX_METADATA_BYTES, Committed, Place
from services.broker.request import Answered, Request
from services.broker.wire import Writer

logger = logging.getLogger("railbus.broker")

_NO_EPOCH = -1
_NOTHING = Committed(-1, _NO_EPOCH, "")


def offset_commit(request: Request) -> Answered:
    """Commit each partition's offset."""
    reader, version, broker = request.body, request.version, request.broker
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 7 else None
    if version <= 4:
        reader.i64()  # retention: ours is for ever

    def partition() -> tuple[int, Committed]:
        index, offset = reader.i32(), reader.i64()
        epoch = reader.i32() if version >= 6 else _NO_EPOCH
        return index, Committed(offset, epoch, reader.nullable_string() or "")

    topics = reader.array(lambda: (reader.string(), reader.array(partition)))
    refused = _may_commit(broker, group_id, member_id, instance_id, generation)
    out = Writer()
    if version >= 3:
        out.i32(0)

    def topic(item: tuple[str, list[tuple[int, Committed]]]) -> None:
        name, partitions = item

        def one(each: tuple[int, Committed]) -> None:
            index, committed = each
            out.i32(index).i16(_commit(broker, group_id, Place(name, index), committed, refused))

        out.string(name).array(partitions, one)

    return out.array(topics, topic).done()


def _may_commit(broker: Broker, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
    group = broker.groups.get(group_id)
    if group is not None:
        return group.may_commit(member_id, instance_id, generation, clock_ms())
    if generation < 0:
        return Code.NONE
    # Nobody is in it: a group that was here knows no such member, one that never was knows no generation.
    return Code.UNKNOWN_MEMBER_ID if broker.offsets.of(group_id) else Code.ILLEGAL_GENERATION


def _commit(broker: Broker, group: str, place: Place, committed: Committed, refused: Code) -> Code:
    if broker.log(*place) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if refused:
        return refused
    if len(committed.metadata) > MAX_METADATA_BYTES:
        return Code.OFFSET_METADATA_TOO_LARGE
    try:
        broker.offsets.commit(group, place, committed)
    except OSError as error:
        logger.error("a commit could not be kept in the data directory: %s", error.strerror)  # noqa: TRY400
        return Code.KAFKA_STORAGE_ERROR
    return Code.NONE


def offset_fetch(request: Request) -> Answered:
    """What a group committed, for the partitions asked or (null) for all."""
    reader, version, broker = request.body, request.version, request.broker
    kept = broker.offsets.of(reader.string())
    asked = reader.nullable_array(lambda: (reader.string(), reader.array(reader.i32)))
    if asked is None:
        by_topic: dict[str, list[int]] = {}
        for place in kept:
            by_topic.setdefault(place.topic, []).append(place.partition)
        asked = list(by_topic.items())
    out = Writer()
    if version >= 3:
        out.i32(0)

    def topic(item: tuple[str, list[int]]) -> None:
        name, partitions = item

        def one(index: int) -> None:
            committed = kept.get(Place(name, index), _NOTHING)
            out.i32(index).i64(committed.offset)
            if version >= 5:
                out.i32(committed.leader_epoch)
            out.string(committed.metadata).i16(Code.NONE)

        out.string(name).array(partitions, one)

    out.array(asked, topic)
    if version >= 2:
        out.i16(Code.NONE)
    return out.done()
