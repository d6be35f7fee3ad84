"""OpenAI's answer in one piece, for clients that do not stream: what a screen shows at the end."""

from collections.abc import Iterable
from typing import Any, ClassVar

import orjson

from schemas.ids import time_ms
from services.edge.chat import note, usage_of
from services.edge.errors import ApiError, for_closed
from services.edge.positions import CHAT_PREFIX
from services.edge.session import CaughtUp, Piece, Session
from services.edge.tally import Sent
from services.stream import Begin, Close, Finish, Op, Refuse, Replace, Withdraw


class Completion:
    """Collects one request's ops until the answer is over.

    Attributes:
        error: Set when there is no answer to give.
    """

    whole: ClassVar[bool] = True
    __slots__ = ("_close", "_finish", "_model", "_recalls", "_session", "error")

    def __init__(self, session: Session, model: str) -> None:
        self.error: ApiError | None = None
        self._session = session
        self._model = model
        self._finish: Finish | None = None
        self._close: Close | None = None
        self._recalls: list[Op] = []

    def encode(self, sent: Sent) -> bytes:
        """Take one op in; nothing is sent before the end."""
        self._take(sent.op)
        return b""

    def _take(self, op: Op) -> None:
        match op:
            case Begin():
                self._model = op.model
            case Finish():
                self._finish = op
            case Close():
                self._close = op
                if self._finish is None and not self._recalls:
                    self.error = for_closed(op, self._session.failure)
            case Replace() | Withdraw() | Refuse():
                self._recalls.append(op)
            case _:
                pass

    def catch_up(self, caught_up: CaughtUp) -> Iterable[Piece]:
        """Take a history in."""
        for op in (*caught_up.had, *(sent.op for sent in caught_up.ops)):
            self._take(op)
        return [(caught_up.ops, b"")]

    def tail(self) -> bytes:
        """The body: the completion, or the error."""
        if self.error is not None:
            return self.error.envelope
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self._session.visible, "refusal": None},
            "logprobs": None,
            "finish_reason": self._finish_reason,
        }
        body: dict[str, Any] = {
            "id": CHAT_PREFIX + self._session.request_id,
            "object": "chat.completion",
            "created": time_ms(self._session.request_id) // 1_000,
            "model": self._model,
            "choices": [choice],
            "usage": usage_of(self._finish),
        }
        if self._recalls:
            body["railbus"] = note(self._recalls)
        return orjson.dumps(body)

    @property
    def _finish_reason(self) -> str:
        if self._recalls or (self._close is not None and self._close.outcome in {"denied", "recalled"}):
            return "content_filter"
        return "stop" if self._finish is None else self._finish.finish_reason
