"""Render an answer for a terminal or a file. No I/O."""

import unicodedata
from typing import Final

from services.stream import Op, Refuse, Replace, Restart, Show, Withdraw, apply

_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_ERASE_BELOW: Final = "\x1b[J"

_CONTROL: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    return text.translate(_CONTROL)


def screen_rows(text: str, columns: int) -> int:
    rows = 0
    for line in text.split("\n"):
        rows, column = rows + 1, 0
        for width in map(_width, line):
            if column + width > columns:  # a wide character is never split between two rows
                rows, column = rows + 1, 0
            column += width
    return rows


class Terminal:
    """Renders one answer as characters for a terminal or a file.

    Args:
        columns: Width of the screen in characters; None if the output is a file or pipe.
        rows: Height of the screen in lines.
    """

    def __init__(self, columns: int | None = None, rows: int = 24) -> None:
        self._columns = columns
        self._rows = rows
        self.visible = ""

    def render(self, op: Op) -> str:
        before = self.visible
        self.visible = apply(before, op)
        match op:
            case Show():
                return self._clean(op.text)
            case Replace():
                return self._redraw(before, f"redacted by rule {op.rule} ({op.category})")
            case Withdraw():
                return self._redraw(before, f"withdrawn by rule {op.rule} ({op.category})")
            case Restart():
                return self._redraw(before, f"attempt {op.attempt} starts over ({op.trigger})")
            case Refuse():
                return self._redraw(before, "denied by policy")
            case _:
                return ""

    def _redraw(self, before: str, why: str) -> str:
        text = self._clean(self.visible)
        if not before:
            return f"{self._notice(f'[{why}]')}\n{text}"
        if self._columns is None:
            return f"\n[the text above is void: {why}]\n{text}"
        up = screen_rows(self._clean(before), self._columns) - 1
        if up >= self._rows:
            return f"\n{self._notice(f'[the text above is void: {why}]')}\n{text}"
        back = f"\r\x1b[{up}A" if up else "\r"
        return f"{back}{_ERASE_BELOW}{self._notice(f'[{why}]')}\n{text}"

    def _notice(self, text: str) -> str:
        return text if self._columns is None else f"{_DIM}{printable(text)}{_PLAIN}"

    def _clean(self, text: str) -> str:
        return text if self._columns is None else printable(text).expandtabs(1)


def _width(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"} and char != "\xad":  # terminals show a soft hyphen
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
