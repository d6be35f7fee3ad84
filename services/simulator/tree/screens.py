"""Decode the bytes of a stream as a client does. This is a second decoder, independent of the product's."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson


class ScreenState(NamedTuple):
    """The state of a client's screen after one event of its stream.

    Attributes:
        op_id: Id of the event; empty before the first event.
        visible: The text on the screen.
        frozen: The only text that the client may show from now on; None before a refusal or a withdrawal.
    """

    op_id: str = ""
    visible: str = ""
    frozen: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The result of decoding one write.

    Attributes:
        states: The state of the client's screen after each event.
        ops: All ops, in order.
        shortened: The ids of ``catch_up`` events. Such an event replaces several ops by fewer ones.
    """

    states: tuple[ScreenState, ...]
    ops: tuple[dict[str, Any], ...]
    shortened: frozenset[str]

    @property
    def closed(self) -> bool:
        return any(op["op"] == "close" for op in self.ops)


@lru_cache(maxsize=64)
def read_events(data: bytes, since: ScreenState) -> Delivered:
    """Apply the events in ``data`` to a client whose screen has the state ``since``. Error events are ignored.

    The newest results are cached, because the oracle decodes each write when it is sent, and the client decodes it
    again when it arrives.
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
