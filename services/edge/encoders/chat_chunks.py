"""Encode ops as OpenAI's chat completion chunks.

A chunk can only append text. An op that takes text back is therefore sent in the extra field ``railbus``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import msgspec
import orjson

from schemas.ids import time_ms
from schemas.stream import Usage
from services.edge.delivery.session import CatchUpOps, DeliverySession, EncodedOps
from services.edge.delivery.stats import PositionedOp
from services.edge.encoders.sse import sse_event
from services.edge.errors import ApiError, error_for_close
from services.edge.log.positions import CHAT_ID_PREFIX
from services.stream import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw

DONE_EVENT: Final = sse_event(b"[DONE]")

OnRestart = Literal["error", "marker"]
"""What a stream does if its answer restarts after text was sent: end with an error, or send a marker and continue."""


@dataclass(slots=True)
class ChunkContent:
    content: str = ""
    finish: str | None = None
    ops: tuple[Op, ...] = ()


class ChatChunkEncoder:
    buffered: ClassVar[bool] = False
    __slots__ = ("_created", "_finish", "_head", "_include_usage", "_mid", "_model", "_on_restart", "_recalled",
                 "_role_sent", "_session", "_usage", "_visible", "error")  # fmt: skip

    def __init__(self, session: DeliverySession, model: str, *, include_usage: bool, on_restart: OnRestart) -> None:
        self.error: ApiError | None = None
        self._session = session
        self._include_usage = include_usage
        self._on_restart = on_restart
        self._created = time_ms(session.request_id) // 1_000
        self._model = model
        self._visible = 0
        self._role_sent = False
        self._recalled = False
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._set_model(model)

    def encode(self, item: PositionedOp) -> bytes:
        op = item.op
        if type(op) is Show and self._role_sent:  # the fast path, for almost every op
            self._visible += len(op.text)
            return b"id: %d:%d:%d\n%b%b%b" % (*item.op_id, self._head, orjson.dumps(op.text), self._mid)
        content = self._content_of(op)
        return b"" if content is None else self._chunk(item, content)

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        for op in caught_up.already_sent:
            if isinstance(op, Restart):
                self._visible = 0  # the client is past this restart, so it is no error
            self._role_sent = self._content_of(op) is not None or self._role_sent
        if caught_up.splittable:  # a generator, because a recall may replace ops that are not encoded yet
            return (((item,), self.encode(item)) for item in caught_up.ops if self.error is None)
        parts: list[ChunkContent] = []
        for item in caught_up.ops:
            part = self._content_of(item.op)
            if self.error is not None:
                break  # after a restart, the text is of another attempt: a chunk would append it
            parts += [] if part is None else [part]
        merged = ChunkContent(
            content="".join(part.content for part in parts),
            finish=next((part.finish for part in parts if part.finish), None),
            ops=tuple(op for part in parts for op in part.ops),
        )
        return [(caught_up.ops, self._chunk(caught_up.ops[-1], merged) if parts else b"")]

    def encode_end(self) -> bytes:
        if self.error is not None:
            return sse_event(self.error.envelope)
        if not self._include_usage:
            return DONE_EVENT
        chunk = self._frame() | {"choices": [], "usage": self._usage or usage_of(None)}
        return sse_event(orjson.dumps(chunk)) + DONE_EVENT

    def _content_of(self, op: Op) -> ChunkContent | None:
        match op:
            case Show():
                self._visible += len(op.text)
                return ChunkContent(content=op.text)
            case Begin():
                self._set_model(op.model)
                return None
            case Replace():
                return self._replace(op)
            case Withdraw() | Refuse():
                return self._take_back(op)
            case Restart():
                return self._restart(op)
            case Finish():
                self._usage = usage_of(op)
                self._finish = "content_filter" if self._recalled else op.finish_reason
                return ChunkContent(finish=self._finish)
            case Close():
                return self._close(op)

    def _replace(self, op: Replace) -> ChunkContent:
        self._recalled = True
        appends = op.start >= self._visible
        self._visible += len(op.text) - (op.end - op.start)
        return ChunkContent(content=op.text if appends else "", ops=(op,))

    def _take_back(self, op: Withdraw | Refuse) -> ChunkContent:
        unsent = self._visible == 0
        self._visible = len(op.text)
        self._finish = "content_filter"
        return ChunkContent(content=op.text if unsent else "", finish=self._finish, ops=(op,))

    def _restart(self, op: Restart) -> ChunkContent | None:
        self._recalled = False
        if self._visible == 0:
            return None
        self._visible = 0
        if self._on_restart == "marker":
            return ChunkContent(ops=(op,))
        self.error = ApiError(
            502, f"The answer restarted ({op.trigger}) after part of it was sent: send the request again, or send it "
            'with railbus.restart = "marker".', code="restarted",
        )  # fmt: skip
        return None

    def _close(self, op: Close) -> ChunkContent | None:
        if self._finish is not None:
            return None
        self.error = error_for_close(op, self._session.failure)
        if self.error is not None:
            return None
        self._finish = "stop" if op.outcome == "completed" else "content_filter"
        return ChunkContent(finish=self._finish, ops=(op,))

    def _set_model(self, model: str) -> None:
        self._model = model
        self._head = b"data: " + orjson.dumps(self._frame())[:-1] + b',"choices":[{"index":0,"delta":{"content":'
        self._mid = b'},"finish_reason":null}]' + (b',"usage":null' if self._include_usage else b"") + b"}\n\n"

    def _frame(self) -> dict[str, Any]:
        return {
            "id": CHAT_ID_PREFIX + self._session.request_id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }

    def _chunk(self, item: PositionedOp, part: ChunkContent) -> bytes:
        delta: dict[str, str] = {}
        if not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", "content": part.content}
        elif part.content:
            delta = {"content": part.content}
        chunk = self._frame() | {"choices": [{"index": 0, "delta": delta, "finish_reason": part.finish}]}
        if self._include_usage:
            chunk["usage"] = None
        if part.ops:
            chunk["railbus"] = railbus_field(part.ops)
        return sse_event(orjson.dumps(chunk), str(item.op_id).encode())


def railbus_field(ops: Sequence[Op]) -> Any:
    plain = [msgspec.to_builtins(op) for op in ops]
    return plain[0] if len(plain) == 1 else {"op": "catch_up", "ops": plain}


def usage_of(finish: Finish | None) -> dict[str, Any]:
    """Build OpenAI's ``usage`` object. If ``finish`` is None, all counts are 0."""
    usage = Usage() if finish is None else finish.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
