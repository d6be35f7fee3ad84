"""The text of an answer as styled segments. Withdrawn text stays visible, but is struck out. No I/O."""

from dataclasses import dataclass, replace
from itertools import groupby

from services.cli.demo.styled_text import Style, StyledSpan
from services.cli.show.terminal import printable
from services.stream import Op, Refuse, Replace, Restart, Show, Withdraw


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSegment:
    """A segment of text in one style.

    Attributes:
        row: Row of the timeline in which the text was first shown.
        style: ``void`` means that the text was withdrawn or replaced.
    """

    row: int
    text: str
    style: Style = "plain"


class AnnotatedText:
    """The text of an answer, including the text that was withdrawn or replaced.

    Args:
        mark_withdrawn: Whether dashes are put around text that was withdrawn or replaced.
    """

    def __init__(self, *, mark_withdrawn: bool = False) -> None:
        self._mark_withdrawn = mark_withdrawn
        self._pieces: list[TextSegment] = []
        self._notes: dict[int, list[StyledSpan]] = {}

    def take(self, op: Op, row: int) -> None:
        match op:
            case Show():
                self._pieces.append(TextSegment(row=row, text=op.text))
            case Replace():
                self._replace(op.start, op.end, TextSegment(row=row, text=op.text, style="new"))
            case Withdraw():
                self._replace(0, self._length, TextSegment(row=row, text=op.text, style="new"))
            case Refuse():
                self._replace(0, self._length, TextSegment(row=row, text=op.text, style="bad"))
            case Restart():
                note = "the answer starts over" if self._length else "nothing was shown: another attempt begins"
                self._notes.setdefault(row, []).append(StyledSpan(note, "warn"))
                self._replace(0, self._length, TextSegment(row=row, text="", style="new"))
            case _:
                pass

    def spans_of_row(self, row: int) -> list[StyledSpan]:
        cell = list(self._notes.get(row, ()))
        of_row = (piece for piece in self._pieces if piece.row == row)
        for style, pieces in groupby(of_row, key=lambda piece: piece.style):
            text = printable("".join(piece.text for piece in pieces)).replace("\n", " ").replace("\t", " ")
            if style == "void" and self._mark_withdrawn and text.strip():
                text = f"-{text.strip()}- "
            cell.append(StyledSpan(text, style))
        return cell

    @property
    def _length(self) -> int:
        return sum(len(piece.text) for piece in self._pieces if piece.style != "void")

    def _replace(self, start: int, end: int, by: TextSegment) -> None:
        kept: list[TextSegment] = []
        at = 0
        placed = False
        for piece in self._pieces:
            if piece.style == "void":
                kept.append(piece)
                continue
            size = len(piece.text)
            first, last = min(max(start - at, 0), size), min(max(end - at, 0), size)
            parts = (piece.text[:first], piece.text[first:last], piece.text[last:])
            if not placed and at + size > end:
                cut = [replace(piece, text=parts[0]), replace(piece, text=parts[1], style="void"), by]
                kept += [*cut, replace(piece, text=parts[2])]
                placed = True
            else:
                kept += [replace(piece, text=parts[0]), replace(piece, text=parts[1], style="void")]
                kept.append(replace(piece, text=parts[2]))
            at += size
        if not placed:
            kept.append(by)
        self._pieces = [piece for piece in kept if piece.text]
