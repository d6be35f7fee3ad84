"""One connection's view of one request: the fold, and the ops that the client still lacks. No I/O, no clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import orjson

from schemas.stream import Failed, Recall, Usage
from services.edge.delivery.stats import DeliveryStats, PositionedOp
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent, OpId
from services.stream import Close, Finish, Governance, Op, Refuse, Screen, Withdraw, catch_up

ANSWER_ENDING_OPS: Final = (Finish, Withdraw, Refuse, Close)
"""After one of these the answer is complete: a stream that carries only the answer ends."""


@dataclass(frozen=True, slots=True)
class CatchUpOps:
    """The ops that bring a client from its position to the end of the history.

    Attributes:
        already_sent: The ops that the client has, in order.
        ops: The ops that it lacks, in order.
        splittable: Whether the client may get only the first of ``ops``. False when text was taken back since: then
            all of them must arrive together, under the position of the last.
    """

    already_sent: tuple[Op, ...]
    ops: tuple[PositionedOp, ...]
    splittable: bool


EncodedOps = tuple[tuple[PositionedOp, ...], bytes]
"""Ops and the bytes that carry them, to be sent together."""


class Encoder(Protocol):
    """The format of one kind of client: ops in, bytes out."""

    @property
    def buffered(self) -> bool:
        """Whether the format sends all its bytes at the end of the stream."""
        ...

    error: ApiError | None

    def encode(self, item: PositionedOp) -> bytes:
        """Encode one op; the result may be empty."""
        ...

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]:
        """Encode a history lazily: a recall may replace the rest of it."""
        ...

    def encode_end(self) -> bytes:
        """Encode the end of the stream: its error or its terminator."""
        ...


class DeliverySession:
    """The fold of one request: takes its events in log order, returns the ops to send.

    Attributes:
        partition: The request's partition of the stream log.
        stats: Counts of what was sent.
        failure: The last ``Failed``, for the error message of a request that closes as failed.
        usage: Tokens that the answer used; None if it is not complete.
        refused: Whether policy refused the prompt.
        answered: Whether the answer is complete; only a ``Close`` or a recall can follow.
        closed: Whether the request has ended.
    """

    __slots__ = ("_screen", "_shortened_to", "answered", "closed", "failure", "partition", "refused", "request_id",
                 "stats", "usage")  # fmt: skip

    def __init__(self, request_id: str, partition: int, governance: Governance) -> None:
        self.request_id = request_id
        self.partition = partition
        self.stats = DeliveryStats()
        self.failure: Failed | None = None
        self.usage: Usage | None = None
        self.refused = False
        self.answered = False
        self.closed = False
        self._screen = Screen(request_id, governance)
        self._shortened_to: OpId | None = None  # the position of the ops that stand for a shortened history

    @property
    def visible(self) -> str:
        """The text on the screen of a client that applied every op."""
        return self._screen.visible

    def feed(self, logged: LoggedEvent) -> list[PositionedOp]:
        """Fold one event as it arrives."""
        items = self._fold(logged)
        if items:
            self.stats.exposed_tokens = max(self.stats.exposed_tokens, self._screen.exposed_tokens)
        return items

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        """Fold the whole history; return the ops that follow ``after``, the last op that the client has.

        Raises:
            ApiError: 400, when no op of this request has that position.
        """
        already_sent: list[Op] = []
        rest: list[PositionedOp] = []
        found = after is None
        for logged in history:
            for item in self._fold(logged):
                if found:
                    rest.append(item)
                    continue
                already_sent.append(item.op)
                self.stats.record_applied(item.op, logged.event.at, item.recalled_at)
                found = item.op_id == after
        if not found:
            raise ApiError(
                400, "This request has no op at that position.", code="unknown_position", param="after",
            )  # fmt: skip
        self.stats.exposed_tokens = self._screen.exposed_tokens
        return self._caught_up(tuple(already_sent), rest)

    def shorten(self, unsent: Sequence[PositionedOp]) -> CatchUpOps:
        """Return the ops to send instead of the unsent ones, without text that a later one of them takes back."""
        return self._caught_up((), unsent)

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        ops = catch_up(self.stats.visible, [item.op for item in rest])
        if len(ops) == len(rest) and all(op is item.op for op, item in zip(ops, rest, strict=True)):
            # Shortened before, and what came since changes nothing: an op may stand for a history by itself.
            together = any(one.op_id == other.op_id for one, other in pairwise(rest))
            together = together or any(item.op_id == self._shortened_to for item in rest)
            return CatchUpOps(already_sent, tuple(rest), splittable=not together)
        places = {item.op.recall_id: item.recalled_at for item in rest if isinstance(item.op, Withdraw)}
        last = self._shortened_to = rest[-1].op_id
        shortened = (
            PositionedOp(last, op, orjson.dumps(op), places[op.recall_id] if isinstance(op, Withdraw) else 0)
            for op in ops
        )
        return CatchUpOps(already_sent, tuple(shortened), splittable=False)

    def _fold(self, logged: LoggedEvent) -> list[PositionedOp]:
        event = logged.event
        if type(event) is Failed:
            self.failure = event
        ops = self._screen.feed(event, logged.log_ms)
        if not ops:
            return []
        recalled_at = self._screen.visible_at(event.start) if type(event) is Recall else 0
        for op in ops:
            if type(op) in ANSWER_ENDING_OPS:
                self.answered = True
                self.refused = self.refused or isinstance(op, Refuse)
                self.usage = op.usage if isinstance(op, Finish) else self.usage
                self.closed = self.closed or isinstance(op, Close)
        return [
            PositionedOp(OpId(self.partition, logged.offset, nth), op, orjson.dumps(op), recalled_at)
            for nth, op in enumerate(ops)
        ]
