"""One connection's view of one request: the fold, cut at the position where the client is. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from schemas.stream import Failed, Recall
from services.edge.errors import ApiError
from services.edge.positions import OpId
from services.edge.tally import Sent, Tally
from services.stream import Close, Finish, Op, Refuse, Screen, Withdraw, catch_up
from services.stream.screen import StreamEvent

ANSWERED: Final = (Finish, Withdraw, Refuse, Close)
"""After one of these nothing is added to the answer: a stream that carries only the answer ends."""


@dataclass(frozen=True, slots=True)
class Logged:
    """An event and where it stands in the stream log."""

    offset: int
    event: StreamEvent


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What brings a client from where it is to the end of the history.

    Attributes:
        had: The ops that it has, in order.
        ops: Those that it lacks, in order.
        whole: The ops stand for the history as it is: each may be cut off after. Otherwise text was taken back
            meanwhile, and they must reach the client all or none, under the position of the last.
    """

    had: tuple[Op, ...]
    ops: tuple[Sent, ...]
    whole: bool


Piece = tuple[tuple[Sent, ...], bytes]
"""Ops and the bytes that carry them, to be sent together."""


class Writer(Protocol):
    """Turns ops into what one kind of client reads."""

    @property
    def whole(self) -> bool:
        """Whether nothing is sent before the end."""
        ...

    error: ApiError | None

    def encode(self, sent: Sent) -> bytes:
        """The bytes for one op; may be none."""
        ...

    def catch_up(self, caught_up: CaughtUp) -> list[Piece]:
        """The bytes for a history."""
        ...

    def tail(self) -> bytes:
        """The bytes that end the stream, or carry its error."""
        ...


class Session:
    """Feed it the request's events in log order; send what it returns.

    Attributes:
        request_id: The request.
        partition: Where in the stream log it lives.
        tally: What was sent.
        failure: The last ``Failed``, for the error message of a request that closes as failed.
        answered: The answer is complete; only a ``Close`` or a recall can follow.
        closed: The request has ended.
    """

    __slots__ = ("_screen", "answered", "closed", "failure", "partition", "request_id", "tally")

    def __init__(self, request_id: str, partition: int) -> None:
        self.request_id = request_id
        self.partition = partition
        self.tally = Tally()
        self.failure: Failed | None = None
        self.answered = False
        self.closed = False
        self._screen = Screen(request_id)

    @property
    def visible(self) -> str:
        """The text that a client shows who applied every op."""
        return self._screen.visible

    def live(self, logged: Logged) -> list[Sent]:
        """Fold one event as it arrives."""
        ops = self._fold(logged.event)
        if not ops:
            return []
        recalled_at = self._screen.visible_at(logged.event.start) if type(logged.event) is Recall else 0
        sent = [
            Sent(OpId(self.partition, logged.offset, nth), op, orjson.dumps(op), recalled_at)
            for nth, op in enumerate(ops)
        ]
        self.tally.exposed_tokens = max(self.tally.exposed_tokens, self._screen.exposed_tokens)
        return sent

    def resume(self, history: Sequence[Logged], after: OpId | None) -> CaughtUp:
        """Fold the whole history, then give what a client lacks that had everything up to ``after``.

        Raises:
            ApiError: 400, when no op of this request has that position.
        """
        had: list[Op] = []
        rest: list[tuple[OpId, Op]] = []
        found = after is None
        for logged in history:
            for nth, op in enumerate(self._fold(logged.event)):
                op_id = OpId(self.partition, logged.offset, nth)
                if found:
                    rest.append((op_id, op))
                    continue
                had.append(op)
                self.tally.applied(op, logged.event.at)
                found = op_id == after
        if not found:
            raise ApiError(
                400, "This request has no op at that position.", code="unknown_position", param="after",
            )  # fmt: skip
        self.tally.exposed_tokens = self._screen.exposed_tokens
        return self._caught_up(tuple(had), rest)

    def _caught_up(self, had: tuple[Op, ...], rest: list[tuple[OpId, Op]]) -> CaughtUp:
        ops = catch_up(self.tally.visible, [op for _, op in rest])
        whole = len(ops) == len(rest) and all(op is known for op, (_, known) in zip(ops, rest, strict=True))
        ids = [op_id for op_id, _ in rest] if whole else [rest[-1][0]] * len(ops)
        sent = tuple(Sent(op_id, op, orjson.dumps(op)) for op_id, op in zip(ids, ops, strict=True))
        return CaughtUp(had, sent, whole)

    def _fold(self, event: StreamEvent) -> tuple[Op, ...]:
        if type(event) is Failed:
            self.failure = event
        ops = self._screen.feed(event)
        for op in ops:
            if isinstance(op, ANSWERED):
                self.answered = True
                self.closed = self.closed or isinstance(op, Close)
        return ops
