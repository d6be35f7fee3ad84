"""Handlers of JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

import uuid

from services.broker.groups.coordinator import GroupTicket, monotonic_ms
from services.broker.groups.members import (
    AssignmentProtocol,
    GroupResponse,
    JoinRequest,
    JoinResponse,
    Peer,
    SyncRequest,
    SyncResponse,
)
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse, DeferredResponse
from services.broker.protocol.wire import Writer
from services.broker.state import ApiRequest


def join_group(request: ApiRequest) -> ApiResponse:
    reader, version, settings = request.body, request.version, request.broker.settings
    group_id, session_ms = reader.string(), reader.i32()
    rebalance_ms = reader.i32() if version >= 1 else session_ms
    join = JoinRequest(
        member_id=reader.string(),
        instance_id=reader.nullable_string() if version >= 5 else None,
        client_id=request.client_id,
        client_host=request.client_host,
        session_ms=session_ms,
        rebalance_ms=max(rebalance_ms, 0),
        protocol_type=reader.string(),
        protocols=tuple(reader.array(lambda: AssignmentProtocol(reader.string(), reader.blob()))),
        id_required=version >= 4,
    )
    if not group_id:
        return _joined(version, JoinResponse(ticket=None, code=ErrorCode.INVALID_GROUP_ID, member_id=join.member_id))
    if not settings.min_session_ms <= session_ms <= settings.max_session_ms:
        return _joined(
            version, JoinResponse(ticket=None, code=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=join.member_id)
        )
    group = request.broker.groups.get(group_id)
    if group is None and join.member_id:
        return _joined(version, JoinResponse(ticket=None, code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=join.member_id))
    group = request.broker.groups.get_or_create(group_id)
    if group is None:
        return _joined(
            version, JoinResponse(ticket=None, code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=join.member_id)
        )

    def write(answer: GroupResponse) -> bytes:
        assert isinstance(answer, JoinResponse)  # noqa: S101 - holds by construction
        return _joined(version, answer)

    response = DeferredResponse()
    new_id = f"{join.instance_id or request.client_id}-{uuid.uuid4()}"
    request.broker.groups.deliver(group, group.join(join, GroupTicket(response, write), new_id, monotonic_ms()))
    return response


def _joined(version: int, answer: JoinResponse) -> bytes:
    out = Writer()
    if version >= 2:
        out.i32(0)
    out.i16(answer.code).i32(answer.generation).string(answer.protocol).string(answer.leader).string(answer.member_id)

    def peer(each: Peer) -> None:
        out.string(each.member_id)
        if version >= 5:
            out.string(each.instance_id)
        out.blob(each.metadata)

    return out.array(answer.peers, peer).done()


def _no_group(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def sync_group(request: ApiRequest) -> ApiResponse:
    reader, version = request.body, request.version
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    assignments = dict(reader.array(lambda: (reader.string(), reader.blob())))
    sync = SyncRequest(member_id=member_id, instance_id=instance_id, generation=generation, assignments=assignments)

    def write(answer: GroupResponse) -> bytes:
        assert isinstance(answer, SyncResponse)  # noqa: S101 - holds by construction
        out = Writer()
        if version >= 1:
            out.i32(0)
        return out.i16(answer.code).blob(answer.assignment).done()

    group = request.broker.groups.get(group_id)
    if group is None:
        return write(SyncResponse(ticket=None, code=_no_group(group_id)))
    response = DeferredResponse()
    request.broker.groups.deliver(group, group.sync(sync, GroupTicket(response, write), monotonic_ms()))
    return response


def heartbeat(request: ApiRequest) -> ApiResponse:
    reader, version = request.body, request.version
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    group = request.broker.groups.get(group_id)
    code = _no_group(group_id)
    if group is not None:
        code = group.heartbeat(member_id, instance_id, generation, monotonic_ms())
    out = Writer()
    if version >= 1:
        out.i32(0)
    return out.i16(code).done()


def leave_group(request: ApiRequest) -> ApiResponse:
    reader, version = request.body, request.version
    group_id = reader.string()
    if version >= 3:
        going = reader.array(lambda: (reader.string(), reader.nullable_string()))
    else:
        going = [(reader.string(), None)]
    outcomes = [(*member, _leave(request, group_id, *member)) for member in going]
    out = Writer()
    if version >= 1:
        out.i32(0)
    if version < 3:
        return out.i16(outcomes[0][2]).done()

    def outcome(item: tuple[str, str | None, ErrorCode]) -> None:
        out.string(item[0]).string(item[1]).i16(item[2])

    return out.i16(ErrorCode.NONE).array(outcomes, outcome).done()


def _leave(request: ApiRequest, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
    group = request.broker.groups.get(group_id)
    if group is None:
        return _no_group(group_id)
    code, answers = group.leave(member_id, instance_id, monotonic_ms())
    request.broker.groups.deliver(group, answers)
    return code
