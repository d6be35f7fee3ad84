"""Handlers of DescribeGroups, ListGroups and DeleteGroups."""

from services.broker.groups.group import ConsumerGroup
from services.broker.groups.members import GroupState, MemberMetadata
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse
from services.broker.protocol.wire import Writer
from services.broker.state import ApiRequest
from services.broker.storage.error_log import log_storage_error

_UNKNOWN_OPERATIONS = -(2**31)
_CONSUMER = "consumer"


def list_groups(request: ApiRequest) -> ApiResponse:
    broker = request.broker
    kinds = dict.fromkeys(broker.offsets.groups(), _CONSUMER)
    kinds.update({group.id: group.members.protocol_type() or _CONSUMER for group in broker.groups.all()})
    out = Writer()
    if request.version >= 1:
        out.i32(0)

    def group(item: tuple[str, str]) -> None:
        out.string(item[0]).string(item[1])

    return out.i16(ErrorCode.NONE).array(kinds.items(), group).done()


def describe_groups(request: ApiRequest) -> ApiResponse:
    reader, version, broker = request.body, request.version, request.broker
    names = reader.array(reader.string)
    out = Writer()
    if version >= 1:
        out.i32(0)

    def member(each: MemberMetadata, group: ConsumerGroup) -> None:
        out.string(each.id)
        if version >= 4:
            out.string(each.join.instance_id)
        out.string(each.join.client_id).string(f"/{each.join.client_host}")
        stable = group.state is GroupState.STABLE
        out.blob(each.metadata(group.protocol) if stable else b"").blob(each.assignment)

    def group(name: str) -> None:
        found = broker.groups.get(name)
        out.i16(ErrorCode.NONE).string(name)
        if found is None:
            state = GroupState.EMPTY.value if broker.offsets.of(name) else "Dead"
            out.string(state).string(_CONSUMER if broker.offsets.of(name) else "").string("").i32(0)
        else:
            protocol = found.protocol if found.state is GroupState.STABLE else None
            out.string(found.state.value).string(found.members.protocol_type()).string(protocol or "")
            out.array(found.members, lambda each: member(each, found))
        if version >= 3:
            out.i32(_UNKNOWN_OPERATIONS)

    return out.array(names, group).done()


def delete_groups(request: ApiRequest) -> ApiResponse:
    reader, broker = request.body, request.broker
    names = reader.array(reader.string)

    def delete(name: str) -> ErrorCode:
        group = broker.groups.get(name)
        if group is not None and group.members:
            return ErrorCode.NON_EMPTY_GROUP
        stored = broker.offsets.of(name)
        if not stored and group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        try:
            for place in list(stored):
                broker.offsets.forget(name, place)
        except OSError as error:
            log_storage_error(f"the deletion of group {name}", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    out = Writer().i32(0)

    def outcome(name: str) -> None:
        out.string(name).i16(delete(name))

    return out.array(names, outcome).done()
