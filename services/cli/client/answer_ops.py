from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from services.stream import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw

_OPS: Final[dict[str, type[Op]]] = {
    "begin": Begin,
    "show": Show,
    "replace": Replace,
    "withdraw": Withdraw,
    "restart": Restart,
    "refuse": Refuse,
    "finish": Finish,
    "close": Close,
}


class AnswerOp(NamedTuple):
    """One op of an answer. An op is an instruction to a client, such as to show text.

    Attributes:
        op_id: ``partition:offset:index``. ``3:120:0`` is the first op of the record at offset 120 of partition 3 of
            ``railbus.streams``. Ops that the edge sends together in one message have the id of the last one.
    """

    request_id: str
    op_id: str
    op: Op


OpHandler = Callable[[AnswerOp], None]
"""Function that is called with each op of an answer, in order."""


class AnswerError(Exception):
    """No complete answer was received, or the request was invalid.

    Attributes:
        usage: Whether it is a usage error, that is, an invalid request.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def parse_op(value: dict[str, Any]) -> Op:
    """Parse an op from its JSON form.

    Raises:
        AnswerError: The op is malformed, or of an unknown kind.
    """
    cls = _OPS.get(value.get("op", ""))
    try:
        if cls is not None:
            return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise AnswerError(f"the edge sent an op that cannot be read: {error}") from None
    raise AnswerError(f"the edge sent an op this program does not know: {str(value.get('op'))[:64]!r}")
