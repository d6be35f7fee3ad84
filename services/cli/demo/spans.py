"""Styled text: pieces, lines of pieces, and how they look with colours, without, and in a picture. Pure."""

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

Style = Literal["plain", "soft", "gone", "new", "good", "bad", "warn", "head"]


class Span(NamedTuple):
    """A piece of text in one style; no line breaks in it."""

    text: str
    style: Style = "plain"


Line = list[Span]

_ANSI: Final[dict[Style, str]] = {
    "plain": "", "soft": "\x1b[2m", "gone": "\x1b[9;31m", "new": "\x1b[33m", "good": "\x1b[32m", "bad": "\x1b[31m",
    "warn": "\x1b[33m", "head": "\x1b[1;36m",
}  # fmt: skip
_RESET: Final = "\x1b[0m"

_COLOURS: Final[dict[Style, str]] = {
    "plain": "#d7dde4", "soft": "#8592a3", "gone": "#d0646b", "new": "#e2b75a", "good": "#6cc08b", "bad": "#e06c75",
    "warn": "#e2b75a", "head": "#7cc5e8",
}  # fmt: skip
_GROUND: Final = "#12171d"
_CHAR: Final = 7.8
"""Width of a character at 13 px, in pixels: said to the reader of the picture, whatever fonts it has."""
_ROW: Final = 18
_MARGIN: Final = 16


def width(line: Iterable[Span]) -> int:
    """Characters of a line."""
    return sum(len(span.text) for span in line)


def wrapped(spans: Iterable[Span], columns: int) -> list[Line]:
    """The spans in lines of at most ``columns`` characters, broken at spaces where there are some."""
    lines: list[Line] = [[]]
    room = columns
    for word in _words(spans):
        if len(word.text) > room and lines[-1]:
            if not word.text.strip():
                continue
            lines.append([])
            room = columns
        text = word.text if lines[-1] else word.text.lstrip(" ")
        while len(text) > room:
            lines[-1].append(Span(text[:room], word.style))
            lines.append([])
            text, room = text[room:], columns
        if text:
            lines[-1].append(Span(text, word.style))
            room -= len(text)
    return [_joined(line) for line in lines]


def _joined(line: Line) -> Line:
    return [Span("".join(span.text for span in same), style) for style, same in groupby(line, lambda span: span.style)]


def padded(line: Sequence[Span], columns: int) -> Line:
    """The line, filled up with spaces."""
    return [*line, Span(" " * max(0, columns - width(line)))]


def with_colours(line: Iterable[Span]) -> str:
    """For a terminal."""
    return "".join(f"{_ANSI[span.style]}{span.text}{_RESET}" if _ANSI[span.style] else span.text for span in line)


def without_colours(line: Iterable[Span]) -> str:
    """For a file or a pipe."""
    return "".join(span.text for span in line).rstrip()


def picture(lines: Sequence[Line], columns: int) -> str:
    """The lines as an SVG that needs no font of ours and nothing from elsewhere."""
    wide, high = round(columns * _CHAR + 2 * _MARGIN), len(lines) * _ROW + 2 * _MARGIN
    rows = "\n".join(_row(line, number) for number, line in enumerate(lines) if width(line))
    styles = "\n".join(f".{style} {{ fill: {colour} }}" for style, colour in _COLOURS.items())
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="railbus demo">
<style>
text {{ font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }}
{styles}
.gone {{ text-decoration: line-through }}
.head {{ font-weight: bold }}
</style>
<rect width="{wide}" height="{high}" rx="8" fill="{_GROUND}"/>
{rows}
</svg>
"""


def _row(line: Line, number: int) -> str:
    y = _MARGIN + number * _ROW + 13
    parts = []
    column = 0
    for span in line:
        text = span.text.rstrip(" ") if span.style == "plain" else span.text
        if text.strip():
            x, length = _MARGIN + column * _CHAR, len(text) * _CHAR
            parts.append(
                f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" class="{span.style}">{html.escape(text)}</text>'
            )
        column += len(span.text)
    return "".join(parts)


def _words(spans: Iterable[Span]) -> Iterator[Span]:
    """Each word with the spaces before it."""
    for span in spans:
        start = 0
        for at in range(1, len(span.text) + 1):
            ends = at == len(span.text) or (span.text[at] == " " and span.text[at - 1] != " ")
            if ends:
                yield Span(span.text[start:at], span.style)
                start = at
