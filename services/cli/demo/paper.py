"""What the reader saw, piece by piece: each piece stays where it was first shown, and is struck out when it is void.

Pure.
"""

from dataclasses import dataclass, replace
from itertools import groupby

from services.cli.demo.spans import Span, Style
from services.cli.terminal import printable
from services.stream import Op, Refuse, Replace, Restart, Show, Withdraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of text.

    Attributes:
        row: Of the story, where it came to be seen.
        text: It.
        style: ``gone`` does not count as text any more.
    """

    row: int
    text: str
    style: Style = "plain"


class Paper:
    """Takes the ops of one answer.

    Args:
        marks: Void text stands between dashes, because it cannot be struck out.
    """

    def __init__(self, *, marks: bool = False) -> None:
        self._marks = marks
        self._pieces: list[Piece] = []
        self._notes: dict[int, list[Span]] = {}

    def take(self, op: Op, row: int) -> None:
        """The next op, which belongs to this row."""
        match op:
            case Show():
                self._pieces.append(Piece(row=row, text=op.text))
            case Replace():
                self._replace(op.start, op.end, Piece(row=row, text=op.text, style="new"))
            case Withdraw():
                self._replace(0, self._length, Piece(row=row, text=op.text, style="new"))
            case Refuse():
                self._replace(0, self._length, Piece(row=row, text=op.text, style="bad"))
            case Restart():
                note = "the answer starts over" if self._length else "nothing was shown: another attempt begins"
                self._notes.setdefault(row, []).append(Span(note, "warn"))
                self._replace(0, self._length, Piece(row=row, text="", style="new"))
            case _:
                pass

    def cell(self, row: int) -> list[Span]:
        """What the reader saw come in this row; void text struck out."""
        cell = list(self._notes.get(row, ()))
        of_row = (piece for piece in self._pieces if piece.row == row)
        for style, pieces in groupby(of_row, key=lambda piece: piece.style):
            text = printable("".join(piece.text for piece in pieces)).replace("\n", " ").replace("\t", " ")
            if style == "gone" and self._marks and text.strip():
                text = f"-{text.strip()}- "
            cell.append(Span(text, style))
        return cell

    @property
    def _length(self) -> int:
        return sum(len(piece.text) for piece in self._pieces if piece.style != "gone")

    def _replace(self, start: int, end: int, by: Piece) -> None:
        """The visible code points from start to end are void; what comes for them stands in its own row."""
        kept: list[Piece] = []
        at = 0
        placed = False
        for piece in self._pieces:
            if piece.style == "gone":
                kept.append(piece)
                continue
            size = len(piece.text)
            first, last = min(max(start - at, 0), size), min(max(end - at, 0), size)
            parts = (piece.text[:first], piece.text[first:last], piece.text[last:])
            if not placed and at + size > end:
                cut = [replace(piece, text=parts[0]), replace(piece, text=parts[1], style="gone"), by]
                kept += [*cut, replace(piece, text=parts[2])]
                placed = True
            else:
                kept += [replace(piece, text=parts[0]), replace(piece, text=parts[1], style="gone")]
                kept.append(replace(piece, text=parts[2]))
            at += size
        if not placed:
            kept.append(by)
        self._pieces = [piece for piece in kept if piece.text]
