"""Encode an answer as one OpenAI chat completion, for clients that do not stream."""

from collections.abc import Iterable
from typing import Any, ClassVar

import orjson

from schemas.ids import time_ms
from services.edge.delivery.session import CatchUpOps, DeliverySession, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.encoders.chat_chunks import railbus_field, usage_of
from services.edge.errors import ApiError, error_for_close
from services.edge.log.positions import CHAT_ID_PREFIX
from services.stream import Begin, Close, Finish, Op, Refuse, Replace, Restart, Withdraw


class CompletionEncoder:
    """Collects the ops of one request, and encodes them at the end as one chat completion.

    Attributes:
        error: The error that is sent instead of the answer; None if there is none.
    """

    buffered: ClassVar[bool] = True
    __slots__ = ("_close", "_finish", "_model", "_recalls", "_session", "error")

    def __init__(self, session: DeliverySession, model: str) -> None:
        self.error: ApiError | None = None
        self._session = session
        self._model = model
        self._finish: Finish | None = None
        self._close: Close | None = None
        self._recalls: list[Op] = []

    def encode(self, item: PositionedOp) -> bytes:
        self._take(item.op)
        return b""

    def _take(self, op: Op) -> None:
        match op:
            case Begin():
                self._model = op.model
            case Finish():
                self._finish = op
            case Close():
                self._close = op
                # A redaction does not complete the answer.
                if self._finish is None and all(isinstance(recall, Replace) for recall in self._recalls):
                    self.error = error_for_close(op, self._session.failure)
            case Replace() | Withdraw() | Refuse():
                self._recalls.append(op)
            case Restart():
                self._recalls.clear()  # they are about text of the attempt before
            case _:
                pass

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        for op in (*caught_up.already_sent, *(item.op for item in caught_up.ops)):
            self._take(op)
        return [(caught_up.ops, b"")]

    def encode_end(self) -> bytes:
        if self.error is not None:
            return self.error.envelope
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self._session.visible, "refusal": None},
            "logprobs": None,
            "finish_reason": self._finish_reason,
        }
        body: dict[str, Any] = {
            "id": CHAT_ID_PREFIX + self._session.request_id,
            "object": "chat.completion",
            "created": time_ms(self._session.request_id) // 1_000,
            "model": self._model,
            "choices": [choice],
            "usage": usage_of(self._finish),
        }
        if self._recalls:
            body["railbus"] = railbus_field(self._recalls)
        return orjson.dumps(body)

    @property
    def _finish_reason(self) -> str:
        if self._recalls or (self._close is not None and self._close.outcome in {"denied", "recalled"}):
            return "content_filter"
        return "stop" if self._finish is None else self._finish.finish_reason
