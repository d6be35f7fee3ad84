"""Where a client is in an answer: ``partition:offset:index``, the op's place in the stream log."""

import re
from typing import Final, NamedTuple

from schemas.ids import is_uuid7
from services.edge.errors import ApiError

CHAT_PREFIX: Final = "chatcmpl-"
_OP_ID: Final = re.compile(r"(\d{1,6}):(\d{1,18}):(\d{1,6})", re.ASCII)


class OpId(NamedTuple):
    """The op number ``nth`` (from 0) that the record at ``partition:offset`` gave."""

    partition: int
    offset: int
    nth: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}:{self.nth}"


def parse_op_id(text: str) -> OpId:
    """The position in a ``Last-Event-ID`` header, an ``after`` parameter or a resume message.

    Raises:
        ApiError: 400, when it is none.
    """
    match = _OP_ID.fullmatch(text)
    if match is None:
        raise ApiError(
            400, "The position must be 'partition:offset:index', as in the id of an op.", code="invalid_position",
            param="after",
        )  # fmt: skip
    return OpId(*map(int, match.groups()))


def parse_request_id(text: str) -> str:
    """The request id in a path or message; ``chatcmpl-`` in front of it is allowed.

    Raises:
        ApiError: 400, when it is not a UUIDv7.
    """
    request_id = text.removeprefix(CHAT_PREFIX)
    if len(request_id) != 36 or not is_uuid7(request_id):
        raise ApiError(
            400, "The request id must be a UUIDv7 in lower case, as the server gave it.", code="invalid_request_id",
            param="request_id",
        )  # fmt: skip
    return request_id
