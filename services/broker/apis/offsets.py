"""Handlers of OffsetCommit and OffsetFetch."""

import logging

from services.broker.groups.committed_offsets import MAX_METADATA_BYTES, CommittedOffset, TopicPartition
from services.broker.groups.coordinator import monotonic_ms
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Writer
from services.broker.state import ApiRequest, BrokerState
from services.broker.storage.error_log import log_storage_error

logger = logging.getLogger("railbus.broker")

_NO_EPOCH = -1
_NOTHING = CommittedOffset(-1, _NO_EPOCH, "")


def offset_commit(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 7 else None
    if version <= 4:
        reader.i64()  # retention time, ignored: offsets are kept for ever

    def partition() -> tuple[int, CommittedOffset]:
        index, offset = reader.i32(), reader.i64()
        epoch = reader.i32() if version >= 6 else _NO_EPOCH
        return index, CommittedOffset(offset, epoch, reader.nullable_string() or "")

    topics = reader.array(lambda: (reader.string(), reader.array(partition)))
    refused = _may_commit(broker, group_id, member_id, instance_id, generation)
    out = Writer()
    if version >= 3:
        out.i32(0)

    def topic(item: tuple[str, list[tuple[int, CommittedOffset]]]) -> None:
        name, partitions = item

        def one(each: tuple[int, CommittedOffset]) -> None:
            index, committed = each
            out.i32(index).i16(_commit(broker, group_id, TopicPartition(name, index), committed, refused))

        out.string(name).array(partitions, one)

    return out.array(topics, topic).done()


def _may_commit(
    broker: BrokerState, group_id: str, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    group = broker.groups.get(group_id)
    if group is not None:
        return group.may_commit(member_id, instance_id, generation, monotonic_ms())
    if generation < 0:
        return ErrorCode.NONE
    # The group has no members. As in Kafka, return UNKNOWN_MEMBER_ID if the group existed, else ILLEGAL_GENERATION.
    return ErrorCode.UNKNOWN_MEMBER_ID if broker.offsets.of(group_id) else ErrorCode.ILLEGAL_GENERATION


def _commit(
    broker: BrokerState, group: str, place: TopicPartition, committed: CommittedOffset, refused: ErrorCode
) -> ErrorCode:
    if broker.log(*place) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if refused:
        return refused
    if len(committed.metadata) > MAX_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    try:
        broker.offsets.commit(group, place, committed)
    except OSError as error:
        log_storage_error(f"a commit of group {group}", error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


def offset_fetch(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    stored = broker.offsets.of(reader.string())
    asked = reader.nullable_array(lambda: (reader.string(), reader.array(reader.i32)))
    if asked is None:
        by_topic: dict[str, list[int]] = {}
        for place in stored:
            by_topic.setdefault(place.topic, []).append(place.partition)
        asked = list(by_topic.items())
    out = Writer()
    if version >= 3:
        out.i32(0)

    def topic(item: tuple[str, list[int]]) -> None:
        name, partitions = item

        def one(index: int) -> None:
            committed = stored.get(TopicPartition(name, index), _NOTHING)
            out.i32(index).i64(committed.offset)
            if version >= 5:
                out.i32(committed.leader_epoch)
            out.string(committed.metadata).i16(ErrorCode.NONE)

        out.string(name).array(partitions, one)

    out.array(asked, topic)
    if version >= 2:
        out.i16(ErrorCode.NONE)
    return out.done()
