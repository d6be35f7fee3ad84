"""An answer as it comes, wherever it comes from."""

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


class Answered(NamedTuple):
    """One op of an answer.

    Attributes:
        request_id: Of which request.
        op_id: Where in the log it stands: ``partition:offset:index``.
        op: What to do.
    """

    request_id: str
    op_id: str
    op: Op


Take = Callable[[Answered], None]
"""Gets each op of an answer as it comes."""


class AnswerFailed(Exception):
    """There is no answer, or no more of it; the message says why in one sentence.

    Attributes:
        usage: Whether the question itself was at fault.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def read_op(value: dict[str, Any]) -> Op:
    """An op from its JSON form.

    Raises:
        AnswerFailed: It is none that this program knows.
    """
    cls = _OPS.get(value.get("op", ""))
    try:
        if cls is not None:
            return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise AnswerFailed(f"the edge sent an op that cannot be read: {error}") from None
    raise AnswerFailed(f"the edge sent an op this program does not know: {str(value.get('op'))[:64]!r}")
