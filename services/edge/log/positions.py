"""Positions of events and ops on the stream log, and the parsing of positions and request ids.

An op is an instruction to a client, such as to show text. One event can result in several ops.
"""

import re
from typing import Final, NamedTuple

from schemas.ids import is_uuid7
from schemas.stream import StreamEvent
from services.edge.errors import ApiError

CHAT_ID_PREFIX: Final = "chatcmpl-"
_OP_ID: Final = re.compile(r"(\d{1,6}):(\d{1,18}):(\d{1,6})", re.ASCII)


class LoggedEvent(NamedTuple):
    """An event with its offset in its partition, and the time at which the broker appended it, in milliseconds."""

    offset: int
    event: StreamEvent
    log_ms: int = 0


class OpId(NamedTuple):
    """The position of an op on the log, written ``partition:offset:nth``.

    Attributes:
        nth: Number of the op among the ops of the same record, from 0.
    """

    partition: int
    offset: int
    nth: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}:{self.nth}"


def parse_op_id(text: str) -> OpId:
    """Parse the position of an op, such as ``3:1042:0``.

    Raises:
        ApiError: 400, if the position is malformed.
    """
    match = _OP_ID.fullmatch(text)
    if match is None:
        raise ApiError(
            400, "The position must be 'partition:offset:index', as in the id of an op.", code="invalid_position",
            param="after",
        )  # fmt: skip
    return OpId(*map(int, match.groups()))


def parse_request_id(text: str) -> str:
    """Parse a request id, with or without the prefix ``chatcmpl-``.

    Raises:
        ApiError: 400, if the id is not a UUIDv7.
    """
    request_id = text.removeprefix(CHAT_ID_PREFIX)
    if len(request_id) != 36 or not is_uuid7(request_id):
        raise ApiError(
            400, "The request id must be a UUIDv7 in lower case, as the server sent it.", code="invalid_request_id",
            param="request_id",
        )  # fmt: skip
    return request_id
