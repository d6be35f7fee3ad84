"""The text of one run: its chunks in order, how many of them are shown, and which spans are redacted.

Two coordinate systems meet here. Recalls speak in code points of the run's whole text; ops speak in code points of what
is visible. A redaction shifts everything behind it by the difference in length.
"""

from bisect import insort
from dataclasses import dataclass

from schemas.stream import Chunk, Recall
from services.stream.ops import Op, Replace, Show
from services.stream.order import ChunkOrder


@dataclass(frozen=True, slots=True, order=True)
class Fragment:
    """A redacted span [start, end) of the run's text and what stands in its place. Fragments never overlap."""

    start: int
    end: int
    text: str
    recall: Recall


class Transcript:
    """What one run said, as far as it is known, shown and redacted."""

    __slots__ = (
        "_fragments",
        "_order",
        "_pieces",
        "_tokens_upto",
        "_visible_length",
        "chunks",
        "released",
        "released_chars",
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.released = 0
        self.released_chars = 0
        self._order = ChunkOrder()
        self._tokens_upto = [0]
        self._fragments: list[Fragment] = []
        self._pieces: list[str] = []
        self._visible_length = 0

    @property
    def visible(self) -> str:
        """The text shown now."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def visible_length(self) -> int:
        """Code points shown now."""
        return self._visible_length

    @property
    def last_seq(self) -> int:
        """The last chunk without a gap before it; -1 when there is none."""
        return len(self.chunks) - 1

    def tokens(self, first: int, end: int) -> int:
        """Tokens in chunks ``first`` to ``end - 1``; 0 when there are none."""
        return self._tokens_upto[end] - self._tokens_upto[first] if first < end else 0

    def hear(self, chunk: Chunk) -> None:
        """Take a chunk, and those that waited for it."""
        if self._order.take(chunk):
            self._add(chunk)
        else:
            for heard in self._order.hear(chunk):
                self._add(heard)

    def release(self, upto: int) -> list[Op]:
        """Show the chunks before index ``upto`` that are not shown yet."""
        ops: list[Op] = []
        for chunk in self.chunks[self.released : upto]:
            self._release_one(chunk, ops)
        self.released = max(self.released, upto)
        return ops

    def redact(self, recall: Recall) -> list[Op]:
        """Replace the recalled span where it is shown, and remember it for where it will be.

        Where spans overlap, the earlier recall in the log keeps its place and its replacement.
        """
        ops: list[Op] = []
        text = recall.replacement
        for start, end in self._uncovered(recall.start, recall.end):
            fragment = Fragment(start, end, text, recall)
            text = ""  # a span that is cut in two is replaced once
            if start < self.released_chars:
                first, last = self.visible_at(start), self.visible_at(min(end, self.released_chars))
                ops.append(self._splice(first, last, fragment))
            insort(self._fragments, fragment, key=lambda known: known.start)
        return ops

    def visible_at(self, offset: int) -> int:
        """Where a shown offset of the run's text is visible; one inside a fragment stands for its end."""
        shift = sum(
            len(fragment.text) - (min(fragment.end, offset) - fragment.start)
            for fragment in self._fragments
            if fragment.start < offset
        )
        return offset + shift

    def _release_one(self, chunk: Chunk, ops: list[Op]) -> None:
        end = chunk.start + len(chunk.text)
        tokens = chunk.tokens
        position = chunk.start
        for fragment in self._fragments:
            if fragment.end <= position or fragment.start >= end:
                continue
            if fragment.start > position:
                ops.append(self._append(chunk.text[position - chunk.start : fragment.start - chunk.start], tokens))
                tokens = 0
            if fragment.start >= chunk.start:
                ops.append(self._splice(self._visible_length, self._visible_length, fragment))
            position = min(fragment.end, end)
        if position < end:
            ops.append(self._append(chunk.text[position - chunk.start :], tokens))
        self.released_chars = end

    def _add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self._tokens_upto.append(self._tokens_upto[-1] + chunk.tokens)

    def _append(self, text: str, tokens: int) -> Show:
        self._pieces.append(text)
        self._visible_length += len(text)
        return Show(text=text, tokens=tokens)

    def _splice(self, start: int, end: int, fragment: Fragment) -> Replace:
        visible = self.visible
        self._pieces = [visible[:start] + fragment.text + visible[end:]]
        self._visible_length = len(self._pieces[0])
        recall = fragment.recall
        return Replace(
            start=start,
            end=end,
            text=fragment.text,
            rule=recall.rule,
            category=recall.category,
            policy_version=recall.policy_version,
            recall_id=recall.recall_id,
        )

    def _uncovered(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that no fragment covers yet."""
        parts: list[tuple[int, int]] = []
        for fragment in self._fragments:
            if fragment.end <= start or fragment.start >= end:
                continue
            if fragment.start > start:
                parts.append((start, fragment.start))
            start = fragment.end
        if start < end:
            parts.append((start, end))
        return parts
