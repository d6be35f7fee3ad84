"""One connection's view of one request: the fold, cut at the position where the client is. No I/O, no clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import orjson

from schemas.stream import Failed, Recall, StreamEvent
from services.edge.errors import ApiError
from services.edge.positions import OpId
from services.edge.tally import Sent, Tally
from services.stream import Close, Finish, Op, Refuse, Screen, Withdraw, catch_up

ANSWERED: Final = (Finish, Withdraw, Refuse, Close)
"""After one of these nothing is added to the answer: a stream that carries only the answer ends."""


class Logged(NamedTuple):
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


class Encoder(Protocol):
    """Turns ops into what one kind of client reads."""

    @property
    def whole(self) -> bool:
        """Whether nothing is sent before the end."""
        ...

    error: ApiError | None

    def encode(self, sent: Sent) -> bytes:
        """The bytes for one op; may be none."""
        ...

    def catch_up(self, caught_up: CaughtUp) -> Iterable[Piece]:
        """The bytes for a history, each piece made when it is asked for: the rest of them may be overtaken."""
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
        sent = self._fold(logged)
        if sent:
            self.tally.exposed_tokens = max(self.tally.exposed_tokens, self._screen.exposed_tokens)
        return sent

    def resume(self, history: Sequence[Logged], after: OpId | None) -> CaughtUp:
        """Fold the whole history, then give what a client lacks that had everything up to ``after``.

        Raises:
            ApiError: 400, when no op of this request has that position.
        """
        had: list[Op] = []
        rest: list[Sent] = []
        found = after is None
        for logged in history:
            for sent in self._fold(logged):
                if found:
                    rest.append(sent)
                    continue
                had.append(sent.op)
                self.tally.applied(sent.op, logged.event.at, sent.recalled_at)
                found = sent.op_id == after
        if not found:
            raise ApiError(
                400, "This request has no op at that position.", code="unknown_position", param="after",
            )  # fmt: skip
        self.tally.exposed_tokens = self._screen.exposed_tokens
        return self._caught_up(tuple(had), rest)

    def overtaken(self, unsent: Sequence[Sent]) -> CaughtUp:
        """What to send in place of ops that were not sent yet, when newer ones among them take some of them back."""
        return self._caught_up((), unsent)

    def _caught_up(self, had: tuple[Op, ...], rest: Sequence[Sent]) -> CaughtUp:
        ops = catch_up(self.tally.visible, [sent.op for sent in rest])
        if len(ops) == len(rest) and all(op is sent.op for op, sent in zip(ops, rest, strict=True)):
            return CaughtUp(had, tuple(rest), whole=True)
        places = {sent.op.recall_id: sent.recalled_at for sent in rest if isinstance(sent.op, Withdraw)}
        last = rest[-1].op_id
        shortened = (
            Sent(last, op, orjson.dumps(op), places[op.recall_id] if isinstance(op, Withdraw) else 0) for op in ops
        )
        return CaughtUp(had, tuple(shortened), whole=False)

    def _fold(self, logged: Logged) -> list[Sent]:
        event = logged.event
        if type(event) is Failed:
            self.failure = event
        ops = self._screen.feed(event)
        if not ops:
            return []
        recalled_at = self._screen.visible_at(event.start) if type(event) is Recall else 0
        for op in ops:
            if isinstance(op, ANSWERED):
                self.answered = True
                self.closed = self.closed or isinstance(op, Close)
        return [
            Sent(OpId(self.partition, logged.offset, nth), op, orjson.dumps(op), recalled_at)
            for nth, op in enumerate(ops)
        ]
