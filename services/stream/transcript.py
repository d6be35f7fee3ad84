"""The text of one run: the chunks in order, how many chunks are shown, and which spans are redacted.

``Recall`` events have offsets in the whole text of the run. Ops have offsets in the visible text. All offsets count
code points.
"""

from bisect import insort
from dataclasses import dataclass

from schemas.stream import Chunk, Recall
from services.stream.ops import Op, Replace, Show
from services.stream.order import ChunkOrder


@dataclass(frozen=True, slots=True, order=True)
class RedactedSpan:
    start: int
    end: int
    text: str
    recall: Recall


class Transcript:
    __slots__ = (
        "_order",
        "_pieces",
        "_redactions",
        "_tokens_upto",
        "_visible_length",
        "chunks",
        "known_ms",
        "released",
        "released_chars",
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.known_ms: list[int] = []  # for each chunk, when it and all earlier chunks were known, by the log's time
        self.released = 0
        self.released_chars = 0
        self._order = ChunkOrder()
        self._tokens_upto = [0]
        self._redactions: list[RedactedSpan] = []
        self._pieces: list[str] = []
        self._visible_length = 0

    @property
    def visible(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def visible_length(self) -> int:
        return self._visible_length

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` up to which no chunk is missing; -1 if the first chunk is missing."""
        return len(self.chunks) - 1

    def tokens(self, first: int, end: int) -> int:
        """Return the number of tokens in chunks ``first`` to ``end - 1``."""
        return self._tokens_upto[end] - self._tokens_upto[first] if first < end else 0

    def add(self, chunk: Chunk, log_ms: int) -> None:
        """Add a chunk that may be out of order. If an earlier chunk is missing, the new chunk waits for it."""
        if self._order.take(chunk):
            self._add(chunk, log_ms)
        else:
            for ready in self._order.add(chunk):
                self._add(ready, log_ms)

    def release(self, upto: int) -> list[Op]:
        ops: list[Op] = []
        while self.released < upto:
            self._release_one(self.chunks[self.released], ops)
            self.released += 1
        return ops

    def redact(self, recall: Recall) -> list[Op]:
        """Redact a recalled span. Return the ops that replace the part of the span that is shown already."""
        # The part that is not shown yet is replaced in ``release``.
        ops: list[Op] = []
        text = recall.replacement
        for start, end in self._uncovered(recall.start, recall.end):
            span = RedactedSpan(start, end, text, recall)
            text = ""  # a span that is cut in two is replaced once
            if start < self.released_chars:
                first, last = self.visible_at(start), self.visible_at(min(end, self.released_chars))
                ops.append(self._splice(first, last, span))
            insort(self._redactions, span, key=lambda known: known.start)
        return ops

    def visible_at(self, offset: int) -> int:
        """Convert an offset in the run's text to an offset in the visible text.

        ``offset`` may be at most ``released_chars``.
        """
        shift = sum(
            len(span.text) - (min(span.end, offset) - span.start) for span in self._redactions if span.start < offset
        )
        return offset + shift

    def _release_one(self, chunk: Chunk, ops: list[Op]) -> None:
        end = chunk.start + len(chunk.text)
        tokens = chunk.tokens
        position = chunk.start
        if not self._redactions:
            ops.append(self._append(chunk.text, tokens))
            self.released_chars = end
            return
        for span in self._redactions:
            if span.end <= position or span.start >= end:
                continue
            if span.start > position:
                ops.append(self._append(chunk.text[position - chunk.start : span.start - chunk.start], tokens))
                tokens = 0
            if span.start >= chunk.start:
                ops.append(self._splice(self._visible_length, self._visible_length, span))
            position = min(span.end, end)
        if position < end:
            ops.append(self._append(chunk.text[position - chunk.start :], tokens))
        self.released_chars = end

    def _add(self, chunk: Chunk, log_ms: int) -> None:
        self.chunks.append(chunk)
        self.known_ms.append(log_ms)
        self._tokens_upto.append(self._tokens_upto[-1] + chunk.tokens)

    def _append(self, text: str, tokens: int) -> Show:
        self._pieces.append(text)
        self._visible_length += len(text)
        return Show(text=text, tokens=tokens)

    def _splice(self, start: int, end: int, span: RedactedSpan) -> Replace:
        visible = self.visible
        self._pieces = [visible[:start] + span.text + visible[end:]]
        self._visible_length = len(self._pieces[0])
        recall = span.recall
        return Replace(
            start=start,
            end=end,
            text=span.text,
            rule=recall.rule,
            category=recall.category,
            policy_version=recall.policy_version,
            recall_id=recall.recall_id,
        )

    def _uncovered(self, start: int, end: int) -> list[tuple[int, int]]:
        parts: list[tuple[int, int]] = []
        for span in self._redactions:
            if span.end <= start or span.start >= end:
                continue
            if span.start > start:
                parts.append((start, span.start))
            start = span.end
        if start < end:
            parts.append((start, end))
        return parts
