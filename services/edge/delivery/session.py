"""Turn the events of one request into the ops for one client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from schemas.stream import Failed, Recall, Usage
from services.edge.delivery.stats import DeliveryStats, PositionedOp
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent, OpId
from services.stream import Close, Finish, Governance, Op, Refuse, Screen, Withdraw, catch_up, encode_op

ANSWER_ENDING_OPS: Final = (Finish, Withdraw, Refuse, Close)
"""Each of these ops completes the answer. In OpenAI's formats, a stream ends after the first of them, in others after
``Close``."""


@dataclass(frozen=True, slots=True)
class CatchUpOps:
    """The ops that bring a client up to date with the events of a request so far.

    Attributes:
        already_sent: The ops that the client already has, in order.
        ops: The ops that the client still needs, in order.
        splittable: Whether each of ``ops`` may be sent in a message of its own. If False, one message has all of them.
    """

    already_sent: tuple[Op, ...]
    ops: tuple[PositionedOp, ...]
    splittable: bool


EncodedOps = tuple[tuple[PositionedOp, ...], bytes]
"""Ops, and the bytes that encode them. These bytes are sent together."""


class Encoder(Protocol):
    @property
    def buffered(self) -> bool:
        """Whether the whole answer is sent in one piece, at the end of the stream."""
        ...

    error: ApiError | None

    def encode(self, item: PositionedOp) -> bytes:
        """Encode one op. The result is empty if the format has nothing to send for this op."""
        ...

    def catch_up(self, caught_up: CatchUpOps) -> Iterable[EncodedOps]: ...

    def encode_end(self) -> bytes:
        """Return the last bytes of the stream, such as an error message or ``[DONE]``. They may be empty.

        If ``buffered`` is true and there is no error, the bytes are the whole answer.
        """
        ...


class DeliverySession:
    """Applies the events of one request in the order of the log, and returns the ops to send to one client.

    Attributes:
        failure: The last ``Failed`` event; None if there was none.
        usage: Token counts of the prompt and the answer; None before the op ``finish``.
        refused: Whether the policy denied the prompt.
        answered: Whether the answer is complete.
        closed: Whether the op ``close`` was returned.
    """

    __slots__ = ("_resumed_with", "_screen", "_shortened_to", "answered", "closed", "failure", "partition", "refused",
                 "request_id", "stats", "usage")  # fmt: skip

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
        # Offset and append time of each event of the history.
        self._resumed_with: frozenset[tuple[int, int]] = frozenset()
        self._shortened_to: OpId | None = None  # position of the ops after recalled text was removed

    @property
    def visible(self) -> str:
        return self._screen.visible

    @property
    def exposed_tokens(self) -> int:
        """Number of tokens in ``visible`` that the safety service has not checked."""
        return self._screen.exposed_tokens

    def feed(self, logged: LoggedEvent) -> list[PositionedOp]:
        items = self._fold(logged)
        if items:
            self.stats.exposed_tokens = max(self.stats.exposed_tokens, self._screen.exposed_tokens)
        return items

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        """Apply ``history``, the events of the request until now. The client already has the ops up to ``after``.

        Raises:
            ApiError: 400, if no op of this request has the position ``after``.
        """
        self._resumed_with = frozenset((logged.offset, logged.log_ms) for logged in history)
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

    def has_resumed_with(self, logged: LoggedEvent) -> bool:
        """Return whether this event was in the history that ``resume`` applied.

        Events are recognised by offset and append time, because a broker that lost records assigns their offsets again.
        """
        return (logged.offset, logged.log_ms) in self._resumed_with

    def forget_history(self) -> None:
        self._resumed_with = frozenset()

    def shorten(self, unsent: Sequence[PositionedOp]) -> CatchUpOps:
        """Return ``unsent``, but without text that one of these ops shows and a later one takes back."""
        return self._caught_up((), unsent)

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        ops = catch_up(self.stats.visible, [item.op for item in rest])
        if len(ops) == len(rest) and all(op is item.op for op, item in zip(ops, rest, strict=True)):
            # Nothing is taken back here. But ops that replace a shortened history must still be sent together.
            together = any(one.op_id == other.op_id for one, other in pairwise(rest))
            together = together or any(item.op_id == self._shortened_to for item in rest)
            return CatchUpOps(already_sent, tuple(rest), splittable=not together)
        places = {item.op.recall_id: item.recalled_at for item in rest if isinstance(item.op, Withdraw)}
        last = self._shortened_to = rest[-1].op_id
        shortened = (
            PositionedOp(last, op, encode_op(op), places[op.recall_id] if isinstance(op, Withdraw) else 0) for op in ops
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
            PositionedOp(OpId(self.partition, logged.offset, nth), op, encode_op(op), recalled_at)
            for nth, op in enumerate(ops)
        ]
