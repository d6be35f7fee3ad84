"""A decoder of the bytes that clients receive. It is independent of the product's decoder."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson


class ScreenState(NamedTuple):
    """What a client shows after one message of its stream. A ``catch_up`` may have several ops, any other has one.

    Attributes:
        op_id: Id of the message's last op; empty before the first message.
        visible: The text on the screen.
        frozen: The text of the newest op ``refuse`` or ``withdraw``, after which no other text may be shown; None if
            there was no such op.
    """

    op_id: str = ""
    visible: str = ""
    frozen: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    states: tuple[ScreenState, ...]
    ops: tuple[dict[str, Any], ...]
    shortened: frozenset[str]  # ids of ``catch_up`` events, which replace several ops by fewer ones

    @property
    def closed(self) -> bool:
        return any(op["op"] == "close" for op in self.ops)


# Each write is decoded twice: by the oracle when it is sent, and by the client when it arrives.
@lru_cache(maxsize=64)
def read_events(data: bytes, since: ScreenState) -> Delivered:
    """Decode ``data``, and apply its events to a screen state. Error events are ignored.

    ``since`` is the screen state before these events.
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
