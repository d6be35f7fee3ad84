"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the wire of `group.py`."""

import uuid

from services.broker.codes import Code
from services.broker.group_timers import GroupTicket, clock_ms
from services.broker.later import Later
from services.broker.members import Answer, Join, Joined, Peer, Protocol, Sync, Synced
from services.broker.request import Answered, Request
from services.broker.wire import Writer


def join_group(request: Request) -> Answered:
    """Join; answered when every member has."""
    reader, version, settings = request.body, request.version, request.broker.settings
    group_id, session_ms = reader.string(), reader.i32()
    rebalance_ms = reader.i32() if version >= 1 else session_ms
    asked = Join(
        member_id=reader.string(),
        instance_id=reader.nullable_string() if version >= 5 else None,
        client_id=request.client_id,
        client_host=request.client_host,
        session_ms=session_ms,
        rebalance_ms=max(rebalance_ms, 0),
        protocol_type=reader.string(),
        protocols=tuple(reader.array(lambda: Protocol(reader.string(), reader.blob()))),
        id_required=version >= 4,
    )
    if not group_id:
        return _joined(version, Joined(ticket=None, code=Code.INVALID_GROUP_ID, member_id=asked.member_id))
    if not settings.min_session_ms <= session_ms <= settings.max_session_ms:
        return _joined(version, Joined(ticket=None, code=Code.INVALID_SESSION_TIMEOUT, member_id=asked.member_id))
    group = request.broker.groups.get(group_id)
    if group is None and asked.member_id:
        return _joined(version, Joined(ticket=None, code=Code.UNKNOWN_MEMBER_ID, member_id=asked.member_id))
    group = request.broker.groups.open(group_id)
    if group is None:
        return _joined(version, Joined(ticket=None, code=Code.GROUP_MAX_SIZE_REACHED, member_id=asked.member_id))

    def write(answer: Answer) -> bytes:
        assert isinstance(answer, Joined)  # noqa: S101 - holds by construction
        return _joined(version, answer)

    later = Later()
    new_id = f"{asked.instance_id or request.client_id}-{uuid.uuid4()}"
    request.broker.groups.settle(group, group.join(asked, GroupTicket(later, write), new_id, clock_ms()))
    return later


def _joined(version: int, answer: Joined) -> bytes:
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


def _no_group(group_id: str) -> Code:
    """What one is told who speaks for a group that is not there."""
    return Code.UNKNOWN_MEMBER_ID if group_id else Code.INVALID_GROUP_ID


def sync_group(request: Request) -> Answered:
    """Bring or fetch assignments; answered when the leader has brought them."""
    reader, version = request.body, request.version
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    assignments = dict(reader.array(lambda: (reader.string(), reader.blob())))
    asked = Sync(member_id=member_id, instance_id=instance_id, generation=generation, assignments=assignments)

    def write(answer: Answer) -> bytes:
        assert isinstance(answer, Synced)  # noqa: S101 - holds by construction
        out = Writer()
        if version >= 1:
            out.i32(0)
        return out.i16(answer.code).blob(answer.assignment).done()

    group = request.broker.groups.get(group_id)
    if group is None:
        return write(Synced(ticket=None, code=_no_group(group_id)))
    later = Later()
    request.broker.groups.settle(group, group.sync(asked, GroupTicket(later, write), clock_ms()))
    return later


def heartbeat(request: Request) -> Answered:
    """A member is alive."""
    reader, version = request.body, request.version
    group_id, generation, member_id = reader.string(), reader.i32(), reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    group = request.broker.groups.get(group_id)
    code = _no_group(group_id)
    if group is not None:
        code = group.heartbeat(member_id, instance_id, generation, clock_ms())
    out = Writer()
    if version >= 1:
        out.i32(0)
    return out.i16(code).done()


def leave_group(request: Request) -> Answered:
    """One member goes, or (version 3) several."""
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

    def outcome(item: tuple[str, str | None, Code]) -> None:
        out.string(item[0]).string(item[1]).i16(item[2])

    return out.i16(Code.NONE).array(outcomes, outcome).done()


def _leave(request: Request, group_id: str, member_id: str, instance_id: str | None) -> Code:
    group = request.broker.groups.get(group_id)
    if group is None:
        return _no_group(group_id)
    code, answers = group.leave(member_id, instance_id, clock_ms())
    request.broker.groups.settle(group, answers)
    return code
