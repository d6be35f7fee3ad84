"""Statistics of the ops sent on one connection."""

import hashlib
import math
from typing import Final, NamedTuple

from schemas.base import Envelope
from schemas.side_events import Detached, DetachReason
from services.edge.log.positions import OpId
from services.stream import Op, Refuse, Replace, Restart, Show, Withdraw


class PositionedOp(NamedTuple):
    """An op with its position on the log and its JSON.

    Attributes:
        line: The op as JSON, without a newline.
        recalled_at: For the op ``withdraw``: the index in the visible text at which the recalled text begins.
    """

    op_id: OpId
    op: Op
    line: bytes
    recalled_at: int = 0


_ROUNDING: Final = 1e-6
"""Sums of token fractions are rounded up. A sum that exceeds an integer by at most this much counts as that integer."""

_ShownSpan = tuple[int, int, float]
"""A piece of visible text: number of code points, time in microseconds when it was shown, and number of tokens."""


class DeliveryStats:
    """Statistics of the ops sent on one connection, for the receipt of the connection.

    Attributes:
        ops: Number of ops sent.
        visible: Number of characters that the client shows now.
        exposed_tokens: Largest number of tokens that were visible and unchecked at the same time.
    """

    __slots__ = ("_exposure_us", "_first_text_us", "_hash", "_last", "_recalled_tokens", "_shown", "exposed_tokens",
                 "ops", "visible")  # fmt: skip

    def __init__(self) -> None:
        self.visible = 0
        self.exposed_tokens = 0
        self.ops = 0
        self._hash = hashlib.sha256()  # a replay of the log gives the same lines, so an auditor can check the hash
        self._last: OpId | None = None
        self._first_text_us: int | None = None
        self._exposure_us = 0
        self._recalled_tokens = 0
        self._shown: list[_ShownSpan] = []  # from the beginning of the text to its end

    def record_sent(self, item: PositionedOp, now_us: int) -> None:
        self.record_unseen(item, now_us)
        self.record_applied(item.op, now_us, item.recalled_at)

    def record_unseen(self, item: PositionedOp, now_us: int) -> None:
        """Record an op of an answer that is sent whole. The client sees only the text that all ops together leave."""
        self.ops += 1
        self._hash.update(item.line + b"\n")
        self._last = item.op_id
        if self._first_text_us is None and type(item.op) is Show:
            self._first_text_us = now_us

    def record_applied(self, op: Op, at_us: int, recalled_at: int = 0) -> None:
        """Update the statistics of the visible text, but not the number of ops sent.

        Call this for an op that the client received on an earlier connection.
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
        position, tokens = 0, 0.0
        for length, shown_us, worth in self._shown:
            overlap = min(position + length, end) - max(position, start)
            position += length
            if overlap > 0:
                self._exposure_us = max(self._exposure_us, at_us - shown_us)
                tokens += worth * overlap / length
        self._recalled_tokens = max(self._recalled_tokens, math.ceil(tokens - _ROUNDING))

    def _splice(self, start: int, end: int, length: int, at_us: int) -> None:
        kept: list[_ShownSpan] = []
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
