"""What a connection was sent, for its receipt: counts, a hash, and how long recalled text stood there."""

import hashlib
import math
from typing import Final, NamedTuple

from schemas.base import Envelope
from schemas.books import Detached, DetachReason
from services.edge.positions import OpId
from services.stream import Op, Refuse, Replace, Restart, Show, Withdraw


class Sent(NamedTuple):
    """An op on its way to the client, with its place in the log and its JSON line.

    Attributes:
        recalled_at: Where on the screen the recall behind it begins.
    """

    op_id: OpId
    op: Op
    line: bytes
    recalled_at: int = 0


_ROUNDING: Final = 1e-6
"""Tokens are shared out over characters; a sum this little above a whole number is that number."""

_Piece = tuple[int, int, float]
"""Code points, when they were shown, and how many tokens they are."""


class Tally:
    """Counts ops as they are sent.

    The hash is SHA-256 over the ops' JSON lines, each ended by a newline, in the order sent: a replay of the log from
    ``resumed_from`` to ``last`` gives the same lines.

    Attributes:
        ops: How many.
        visible: Code points on the client's screen.
        exposed_tokens: Largest number of tokens shown beyond what was cleared.
    """

    __slots__ = ("_exposure_us", "_first_text_us", "_hash", "_last", "_recalled_tokens", "_shown", "exposed_tokens",
                 "ops", "visible")  # fmt: skip

    def __init__(self) -> None:
        self.visible = 0
        self.exposed_tokens = 0
        self.ops = 0
        self._hash = hashlib.sha256()
        self._last: OpId | None = None
        self._first_text_us: int | None = None
        self._exposure_us = 0
        self._recalled_tokens = 0
        self._shown: list[_Piece] = []  # in the order of the text

    def sent(self, item: Sent, now_us: int) -> None:
        """An op went to the client now."""
        self.ops += 1
        self._hash.update(item.line + b"\n")
        self._last = item.op_id
        if self._first_text_us is None and type(item.op) is Show:
            self._first_text_us = now_us
        self.applied(item.op, now_us, item.recalled_at)

    def applied(self, op: Op, at_us: int, recalled_at: int = 0) -> None:
        """The client's screen changed: now by an op that is sent, or earlier by one that another connection sent.

        Args:
            op: What changed it.
            at_us: When, in microseconds since the epoch.
            recalled_at: Where on the screen the recall behind the op begins.
        """
        if type(op) is Show:
            self.visible += len(op.text)
            self._shown.append((len(op.text), at_us, op.tokens))
        elif isinstance(op, Replace):
            self._recall(op.start, op.end, at_us)
            self._splice(op.start, op.end, len(op.text), at_us)
        elif isinstance(op, Withdraw | Refuse):
            self._recall(recalled_at, self.visible, at_us)
            self._splice(0, self.visible, len(op.text), at_us)
        elif isinstance(op, Restart):
            self._splice(0, self.visible, 0, at_us)

    def receipt(self, about: Envelope, *, connection: str, reason: DetachReason, received_us: int) -> Detached:
        """The event that ends the connection."""
        first = self._first_text_us
        return Detached(
            **about,
            connection=connection,
            reason=reason,
            ops=self.ops,
            ops_hash=self._hash.hexdigest(),
            last=None if self._last is None else str(self._last),
            first_text_ms=None if first is None else max(0, first - received_us) / 1_000,
            exposed_tokens=self.exposed_tokens,
            exposure_ms=self._exposure_us / 1_000,
            recalled_tokens=self._recalled_tokens,
        )

    def _recall(self, start: int, end: int, at_us: int) -> None:
        """Text in [start, end) is taken back: its oldest part stood there longest."""
        position, tokens = 0, 0.0
        for length, shown_us, worth in self._shown:
            overlap = min(position + length, end) - max(position, start)
            position += length
            if overlap > 0:
                self._exposure_us = max(self._exposure_us, at_us - shown_us)
                tokens += worth * overlap / length
        self._recalled_tokens = max(self._recalled_tokens, math.ceil(tokens - _ROUNDING))

    def _splice(self, start: int, end: int, length: int, at_us: int) -> None:
        kept: list[_Piece] = []
        position = 0
        placed = False
        for size, shown_us, tokens in self._shown:
            first, last = position, position + size
            position = last
            if min(last, start) > first:
                head = min(last, start) - first
                kept.append((head, shown_us, tokens * head / size))
            if last > start and not placed:
                kept.append((length, at_us, 0))
                placed = True
            if last > end:
                tail = last - max(first, end)
                kept.append((tail, shown_us, tokens * tail / size))
        if not placed:
            kept.append((length, at_us, 0))
        self._shown = [piece for piece in kept if piece[0]]
        self.visible += length - (end - start)
