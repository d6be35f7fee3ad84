"""OpenAI's chat format: a stream of chunks. Pure; the bytes depend on the log alone.

An OpenAI-style stream can only append. What takes text back is said in the extra field ``railbus``: the op itself. And:

- a recall or refusal before any text was sent comes as ordinary text with ``finish_reason`` = ``content_filter``;
- a recall of the whole answer after text was sent ends the stream with ``content_filter`` and adds no text;
- a redaction of text that was sent is only noted; its answer ends with ``content_filter``;
- a restart after text was sent ends the stream with an error, unless the client asked for a marker.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson

from schemas.ids import time_ms
from schemas.stream import Usage
from services.edge.body import OnRestart
from services.edge.errors import ApiError, for_closed
from services.edge.framing import sse
from services.edge.positions import CHAT_PREFIX
from services.edge.session import CaughtUp, Piece, Session
from services.edge.tally import Sent
from services.stream import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw

DONE: Final = sse(b"[DONE]")


@dataclass(slots=True)
class Part:
    """What one op adds to the stream."""

    content: str = ""
    finish: str | None = None
    notes: tuple[Op, ...] = ()


class ChatStream:
    """Writes one request's ops as chat completion chunks.

    Attributes:
        error: Set when the stream must end with this error after the bytes returned.
    """

    whole: ClassVar[bool] = False
    __slots__ = ("_created", "_finish", "_head", "_include_usage", "_mid", "_model", "_on_restart", "_recalled",
                 "_role_sent", "_session", "_usage", "_visible", "error")  # fmt: skip

    def __init__(self, session: Session, model: str, *, include_usage: bool, on_restart: OnRestart) -> None:
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
        self._speak_as(model)

    def encode(self, sent: Sent) -> bytes:
        """The chunk for one op; nothing for an op that an OpenAI client need not know."""
        op = sent.op
        if type(op) is Show and self._role_sent:  # almost every op: no more work than this
            self._visible += len(op.text)
            return b"id: %d:%d:%d\n%b%b%b" % (*sent.op_id, self._head, orjson.dumps(op.text), self._mid)
        part = self._part(op)
        return b"" if part is None else self._chunk(sent, part)

    def catch_up(self, caught_up: CaughtUp) -> Iterable[Piece]:
        """The chunks for a history; a history with text taken back is one chunk, so that it arrives all or none."""
        for op in caught_up.had:
            self._role_sent = self._part(op) is not None or self._role_sent
        if caught_up.whole:
            return (((sent,), self.encode(sent)) for sent in caught_up.ops if self.error is None)
        parts = [part for sent in caught_up.ops if (part := self._part(sent.op)) is not None]
        merged = Part(
            content="".join(part.content for part in parts),
            finish=next((part.finish for part in parts if part.finish), None),
            notes=tuple(note for part in parts for note in part.notes),
        )
        return [(caught_up.ops, self._chunk(caught_up.ops[-1], merged) if parts else b"")]

    def tail(self) -> bytes:
        """What ends the stream, after the last op or as its error."""
        if self.error is not None:
            return sse(self.error.envelope)
        if not self._include_usage:
            return DONE
        chunk = self._frame() | {"choices": [], "usage": self._usage or usage_of(None)}
        return sse(orjson.dumps(chunk)) + DONE

    def _part(self, op: Op) -> Part | None:
        match op:
            case Show():
                self._visible += len(op.text)
                return Part(content=op.text)
            case Begin():
                self._speak_as(op.model)
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
                return Part(finish=self._finish)
            case Close():
                return self._close(op)

    def _replace(self, op: Replace) -> Part:
        self._recalled = True
        appends = op.start >= self._visible
        self._visible += len(op.text) - (op.end - op.start)
        return Part(content=op.text if appends else "", notes=(op,))

    def _take_back(self, op: Withdraw | Refuse) -> Part:
        unsent = self._visible == 0
        self._visible = len(op.text)
        self._finish = "content_filter"
        return Part(content=op.text if unsent else "", finish=self._finish, notes=(op,))

    def _restart(self, op: Restart) -> Part | None:
        if self._visible == 0:
            return None
        self._visible = 0
        if self._on_restart == "marker":
            return Part(notes=(op,))
        self.error = ApiError(
            502, f"The answer had to start anew ({op.trigger}) after part of it was sent: ask again, or ask with "
            'railbus.restart = "marker".', code="restarted",
        )  # fmt: skip
        return None

    def _close(self, op: Close) -> Part | None:
        if self._finish is not None:
            return None
        self.error = for_closed(op, self._session.failure)
        if self.error is not None:
            return None
        self._finish = "stop" if op.outcome == "completed" else "content_filter"
        return Part(finish=self._finish, notes=(op,))

    def _speak_as(self, model: str) -> None:
        self._model = model
        self._head = b"data: " + orjson.dumps(self._frame())[:-1] + b',"choices":[{"index":0,"delta":{"content":'
        self._mid = b'},"finish_reason":null}]' + (b',"usage":null' if self._include_usage else b"") + b"}\n\n"

    def _frame(self) -> dict[str, Any]:
        """The fields that all chunks share."""
        return {
            "id": CHAT_PREFIX + self._session.request_id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }

    def _chunk(self, sent: Sent, part: Part) -> bytes:
        delta: dict[str, str] = {}
        if not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", "content": part.content}
        elif part.content:
            delta = {"content": part.content}
        chunk = self._frame() | {"choices": [{"index": 0, "delta": delta, "finish_reason": part.finish}]}
        if self._include_usage:
            chunk["usage"] = None
        if part.notes:
            chunk["railbus"] = note(part.notes)
        return sse(orjson.dumps(chunk), str(sent.op_id).encode())


def note(ops: Sequence[Op]) -> Any:
    """The field ``railbus``: the op, or several of them."""
    return ops[0] if len(ops) == 1 else {"op": "catch_up", "ops": ops}


def usage_of(finish: Finish | None) -> dict[str, Any]:
    """OpenAI's token counts."""
    usage = Usage() if finish is None else finish.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
