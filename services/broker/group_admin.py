"""DescribeGroups, ListGroups, DeleteGroups: what an operator sees of the groups."""

from services.broker.codes import Code
from services.broker.group import Group
from services.broker.members import Member, State
from services.broker.request import Answered, Request
from services.broker.wire import Writer

_UNKNOWN_OPERATIONS = -(2**31)
_CONSUMER = "consumer"


def list_groups(request: Request) -> Answered:
    """Every group that has members or committed offsets."""
    broker = request.broker
    kinds = dict.fromkeys(broker.offsets.groups(), _CONSUMER)
    kinds.update({group.id: group.members.protocol_type() or _CONSUMER for group in broker.groups.all()})
    out = Writer()
    if request.version >= 1:
        out.i32(0)

    def group(item: tuple[str, str]) -> None:
        out.string(item[0]).string(item[1])

    return out.i16(Code.NONE).array(kinds.items(), group).done()


def describe_groups(request: Request) -> Answered:
    """State and members of each group asked for."""
    reader, version, broker = request.body, request.version, request.broker
    names = reader.array(reader.string)
    out = Writer()
    if version >= 1:
        out.i32(0)

    def member(each: Member, group: Group) -> None:
        out.string(each.id)
        if version >= 4:
            out.string(each.join.instance_id)
        out.string(each.join.client_id).string(f"/{each.join.client_host}")
        stable = group.state is State.STABLE
        out.blob(each.metadata(group.protocol) if stable else b"").blob(each.assignment)

    def group(name: str) -> None:
        found = broker.groups.get(name)
        out.i16(Code.NONE).string(name)
        if found is None:
            state = State.EMPTY.value if broker.offsets.of(name) else "Dead"
            out.string(state).string(_CONSUMER if broker.offsets.of(name) else "").string("").i32(0)
        else:
            protocol = found.protocol if found.state is State.STABLE else None
            out.string(found.state.value).string(found.members.protocol_type()).string(protocol or "")
            out.array(found.members, lambda each: member(each, found))
        if version >= 3:
            out.i32(_UNKNOWN_OPERATIONS)

    return out.array(names, group).done()


def delete_groups(request: Request) -> Answered:
    """Forget the offsets of groups that nobody is in."""
    reader, broker = request.body, request.broker
    names = reader.array(reader.string)

    def delete(name: str) -> Code:
        group = broker.groups.get(name)
        if group is not None and group.members:
            return Code.NON_EMPTY_GROUP
        kept = broker.offsets.of(name)
        if not kept and group is None:
            return Code.GROUP_ID_NOT_FOUND
        for place in list(kept):
            broker.offsets.forget(name, place)
        return Code.NONE

    out = Writer().i32(0)

    def outcome(name: str) -> None:
        out.string(name).i16(delete(name))

    return out.array(names, outcome).done()
