"""Read a stream's bytes as a client does. This is a second, independent decoder of server-sent events and ops."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson


class ScreenState(NamedTuple):
    """The state of a client after one event of its stream.

    Attributes:
        op_id: The event's id; empty before the first.
        visible: The text on its screen.
        frozen: The only text that it may show from now on, after a refusal or a withdrawal.
    """

    op_id: str = ""
    visible: str = ""
    frozen: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a client got by one write.

    Attributes:
        states: The client's state after each event.
        ops: All ops, in order.
        shortened: The ids of events that replace all ops up to them.
    """

    states: tuple[ScreenState, ...]
    ops: tuple[dict[str, Any], ...]
    shortened: frozenset[str]

    @property
    def closed(self) -> bool:
        return any(op["op"] == "close" for op in self.ops)


@lru_cache(maxsize=64)
def read_events(data: bytes, since: ScreenState) -> Delivered:
    """Apply the events in ``data`` to a client in the state ``since``. An error event is not an op.

    The oracle reads a write when it is sent, and the client reads it again when it arrives. So the newest results are
    cached.
    """
    states, ops, shortened = [], [], set()
    at = since
    for event in data.split(b"\n\n"):
        head, _, body = event.partition(b"\ndata: ")
        if not head.startswith(b"id: "):
            continue
        op = orjson.loads(body)
        _, visible, frozen = at
        if op["op"] == "catch_up":
            shortened.add(head[4:].decode())
        for each in op["ops"] if op["op"] == "catch_up" else (op,):
            ops.append(each)
            match each["op"]:
                case "show":
                    visible += each["text"]
                case "replace":
                    visible = visible[: each["start"]] + each["text"] + visible[each["end"] :]
                case "withdraw" | "refuse":
                    visible = frozen = each["text"]
                case "restart":
                    visible = ""
        at = ScreenState(head[4:].decode(), visible, frozen)
        states.append(at)
    return Delivered(tuple(states), tuple(ops), frozenset(shortened))
