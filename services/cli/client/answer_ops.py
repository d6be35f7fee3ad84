"""The ops of an answer, from the edge or from the log."""

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
    """One op of an answer.

    Attributes:
        request_id: The request.
        op_id: Position in the stream log: ``partition:offset:index``.
        op: What to change on the screen.
    """

    request_id: str
    op_id: str
    op: Op


OpHandler = Callable[[AnswerOp], None]
"""Receives each op of an answer in order."""


class AnswerError(Exception):
    """The answer ended without a ``Close``, or the request was at fault; the message is one sentence.

    Attributes:
        usage: Whether the request itself was at fault.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def parse_op(value: dict[str, Any]) -> Op:
    """Parse an op from its JSON form.

    Raises:
        AnswerError: This program does not know the op.
    """
    cls = _OPS.get(value.get("op", ""))
    try:
        if cls is not None:
            return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise AnswerError(f"the edge sent an op that cannot be read: {error}") from None
    raise AnswerError(f"the edge sent an op this program does not know: {str(value.get('op'))[:64]!r}")
